# pad_sequence as it comes (time first), pack_padded_sequence in the model, an unsorted batch.
# %% setup
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

data = [(torch.randint(1, 8, (int(k),)), int(k) % 3) for k in torch.randint(2, 7, (26,))]

def collate_batch(batch):
    label_list, text_list, lengths = [], [], []
    for text, label in batch:
        label_list.append(label)
        text_list.append(text)
        lengths.append(len(text))
    return pad_sequence(text_list), torch.tensor(label_list), torch.tensor(lengths)

class RNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 5)
        self.rnn = nn.LSTM(5, 6)
        self.fc = nn.Linear(6, 3)

    def forward(self, text, text_lengths):
        embedded = self.embedding(text)
        packed = pack_padded_sequence(embedded, text_lengths.cpu(), enforce_sorted=False)
        _, (hidden, _) = self.rnn(packed)
        return self.fc(hidden.squeeze(0))

iterator = DataLoader(data, batch_size=6, shuffle=True, collate_fn=collate_batch)
model = RNN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
criterion = nn.CrossEntropyLoss()
# %% cell
def train(model, iterator):
    epoch_loss, epoch_acc, shapes = 0, 0, []
    model.train()
    for text, label, lengths in iterator:
        optimizer.zero_grad()
        predictions = model(text, lengths)
        loss = criterion(predictions, label)
        acc = (predictions.argmax(1) == label).double().mean()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
        epoch_acc += acc.item()
        shapes.append(tuple(text.shape))
    return epoch_loss / len(iterator), epoch_acc / len(iterator), shapes

results = [train(model, iterator) for _ in range(2)]
for epoch, (loss, acc, _) in enumerate(results):
    print(f"| epoch {epoch:3d} | loss {loss:.5f} | accuracy {acc * 100:.2f}%")
# %% compare
model.state_dict(), optimizer.state_dict(), results
