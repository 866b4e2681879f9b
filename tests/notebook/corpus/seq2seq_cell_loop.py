# Encoder and decoder called in a loop of the cell, two optimizers, loss added up over time, teacher forcing per batch.
# %% setup
import random
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

inp = torch.randint(1, 7, (22, 4))
tgt = (inp + 1) % 7
train_dataloader = DataLoader(TensorDataset(inp, tgt), batch_size=6, shuffle=True)

class EncoderRNN(nn.Module):
    def __init__(self, hidden_size=6):
        super().__init__()
        self.embedding = nn.Embedding(7, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)

    def forward(self, input):
        return self.gru(self.embedding(input))

class DecoderRNN(nn.Module):
    def __init__(self, hidden_size=6):
        super().__init__()
        self.embedding = nn.Embedding(7, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, 7)

    def forward_step(self, input, hidden):
        output = F.relu(self.embedding(input))
        output, hidden = self.gru(output, hidden)
        return self.out(output), hidden

encoder, decoder = EncoderRNN(), DecoderRNN()
encoder_optimizer = torch.optim.Adam(encoder.parameters(), lr=0.01)
decoder_optimizer = torch.optim.Adam(decoder.parameters(), lr=0.01)
criterion = nn.NLLLoss()
# %% cell
plot_losses = []
for epoch in range(2):
    total_loss = 0
    for input_tensor, target_tensor in train_dataloader:
        encoder_optimizer.zero_grad()
        decoder_optimizer.zero_grad()
        encoder_outputs, encoder_hidden = encoder(input_tensor)
        batch_size = encoder_outputs.size(0)
        decoder_input = torch.empty(batch_size, 1, dtype=torch.long).fill_(0)
        decoder_hidden = encoder_hidden
        decoder_outputs = []
        use_teacher_forcing = random.random() < 0.5
        for i in range(4):
            decoder_output, decoder_hidden = decoder.forward_step(decoder_input, decoder_hidden)
            decoder_outputs.append(decoder_output)
            if use_teacher_forcing:
                decoder_input = target_tensor[:, i].unsqueeze(1)
            else:
                _, topi = decoder_output.topk(1)
                decoder_input = topi.squeeze(-1).detach()
        decoder_outputs = torch.cat(decoder_outputs, dim=1)
        decoder_outputs = F.log_softmax(decoder_outputs, dim=-1)
        loss = criterion(decoder_outputs.view(-1, decoder_outputs.size(-1)), target_tensor.view(-1))
        loss.backward()
        encoder_optimizer.step()
        decoder_optimizer.step()
        total_loss += loss.item()
    plot_losses.append(total_loss / len(train_dataloader))
    print("%d %.4f" % (epoch, plot_losses[-1]))
# %% compare
encoder.state_dict(), decoder.state_dict(), encoder_optimizer.state_dict(), plot_losses
