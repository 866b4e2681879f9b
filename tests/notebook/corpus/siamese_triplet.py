# Siamese pairs with a contrastive margin loss, and triplets, from a data set that returns three samples.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

class Triplets(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 5)
        self.label = torch.arange(n) % 2

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.x[(i + 2) % len(self.x)], self.x[(i + 1) % len(self.x)], self.label[i]

class ContrastiveLoss(nn.Module):
    def __init__(self, margin=2.0):
        super().__init__()
        self.margin = margin

    def forward(self, output1, output2, label):
        euclidean_distance = F.pairwise_distance(output1, output2, keepdim=True)
        return torch.mean(
            (1 - label) * torch.pow(euclidean_distance, 2)
            + label * torch.pow(torch.clamp(self.margin - euclidean_distance, min=0.0), 2)
        )

train_dataloader = DataLoader(Triplets(30), shuffle=True, batch_size=8)
net = nn.Sequential(nn.Linear(5, 8), nn.Sigmoid(), nn.Linear(8, 2))
criterion = ContrastiveLoss()
triplet = nn.TripletMarginLoss(margin=1.0)
optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
# %% cell
counter, loss_history = [], []
for epoch in range(2):
    for i, (anchor, pos, neg, label) in enumerate(train_dataloader, 0):
        optimizer.zero_grad()
        a, p, n = net(anchor), net(pos), net(neg)
        loss_contrastive = criterion(a, n, label.unsqueeze(1)) + triplet(a, p, n)
        loss_contrastive = loss_contrastive + F.cosine_embedding_loss(a, p, 2 * label - 1)
        loss_contrastive.backward()
        optimizer.step()
        if i % 2 == 0:
            print(f"Epoch number {epoch}\n Current loss {loss_contrastive.item()}\n")
            counter.append(i)
            loss_history.append(loss_contrastive.item())
# %% compare
net.state_dict(), optimizer.state_dict(), counter, loss_history
