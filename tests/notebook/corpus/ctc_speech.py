# Speech recognition: padded spectrograms, CTC loss with time first and lengths, greedy decoding to texts in the training loop.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

chars = "_abcd"
class Speech(Dataset):
    def __len__(self):
        return 15
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        label = torch.randint(1, 5, (2 + i % 2,), generator=g)
        return torch.randn(8 + i % 3, 3, generator=g), label, "".join(chars[c] for c in label)

def data_processing(data):
    spectrograms, labels, input_lengths, label_lengths, texts = [], [], [], [], []
    for spec, label, text in data:
        spectrograms.append(spec)
        labels.append(label)
        input_lengths.append(spec.shape[0])
        label_lengths.append(len(label))
        texts.append(text)
    return pad_sequence(spectrograms, batch_first=True), pad_sequence(labels, batch_first=True), input_lengths, label_lengths, texts

class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 6, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(12, len(chars))
    def forward(self, x):
        out, _ = self.rnn(x)
        return self.fc(out)

loader = DataLoader(Speech(), batch_size=6, shuffle=True, collate_fn=data_processing)
model = Recognizer()
criterion = nn.CTCLoss(blank=0, zero_infinity=True)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
# %% cell
losses, decoded = [], []
for epoch in range(2):
    for batch_idx, (spectrograms, labels, input_lengths, label_lengths, texts) in enumerate(loader):
        optimizer.zero_grad()
        output = model(spectrograms)
        output = F.log_softmax(output, dim=2)
        output = output.transpose(0, 1)
        loss = criterion(output, labels, input_lengths, label_lengths)
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
        best = output.detach().argmax(dim=-1).T
        for row, text in zip(best, texts):
            decoded.append(("".join(chars[c] for c in torch.unique_consecutive(row).tolist() if c != 0), text))
    print(f"Epoch {epoch}: {sum(losses) / len(losses):.4f}")
# %% compare
model.state_dict(), optimizer.state_dict(), losses, decoded
