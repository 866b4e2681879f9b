# The bag-of-words classifier: concatenated texts with offsets from a collate_fn, EmbeddingBag, accuracy by total.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader

dataset = [(int(torch.randint(1, 4, ()).item()), torch.randint(0, 12, (int(k),))) for k in torch.randint(1, 6, (30,))]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

def collate_batch(batch):
    label_list, text_list, offsets = [], [], [0]
    for _label, _text in batch:
        label_list.append(_label - 1)
        text_list.append(_text)
        offsets.append(_text.size(0))
    label_list = torch.tensor(label_list, dtype=torch.int64)
    offsets = torch.tensor(offsets[:-1]).cumsum(dim=0)
    text_list = torch.cat(text_list)
    return label_list.to(device), text_list.to(device), offsets.to(device)

class TextClassificationModel(nn.Module):
    def __init__(self, vocab_size, embed_dim, num_class):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, sparse=False)
        self.fc = nn.Linear(embed_dim, num_class)

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))

dataloader = DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=collate_batch)
model = TextClassificationModel(12, 6, 3).to(device)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1.0, gamma=0.1)
# %% cell
def train(dataloader):
    model.train()
    total_acc, total_count = 0, 0
    for idx, (label, text, offsets) in enumerate(dataloader):
        optimizer.zero_grad()
        predicted_label = model(text, offsets)
        loss = criterion(predicted_label, label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        total_acc += (predicted_label.argmax(1) == label).sum().item()
        total_count += label.size(0)
    return total_acc / total_count, text.shape

accs = []
for epoch in range(1, 3):
    accs.append(train(dataloader))
    scheduler.step()
    print("| epoch {:3d} | accuracy {:8.3f}".format(epoch, accs[-1][0]))
# %% compare
model.state_dict(), optimizer.state_dict(), scheduler.state_dict(), accs
