# Image captioning: an encoder of images and a decoder of padded captions by lengths, pack_padded_sequence(...).data as targets, perplexity, sampling.
# %% setup
import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, Dataset

class Captions(Dataset):
    def __len__(self):
        return 17
    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        return torch.randn(1, 6, 6, generator=g), torch.randint(1, 9, (3 + index % 4,), generator=g)

def collate_fn(data):
    data.sort(key=lambda x: len(x[1]), reverse=True)
    images, captions = zip(*data)
    images = torch.stack(images, 0)
    lengths = [len(cap) for cap in captions]
    targets = torch.zeros(len(captions), max(lengths)).long()
    for i, cap in enumerate(captions):
        end = lengths[i]
        targets[i, :end] = cap[:end]
    return images, targets, lengths

class EncoderCNN(nn.Module):
    def __init__(self, embed_size):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(1, 3, 3), nn.Linear(48, embed_size)
    def forward(self, images):
        with torch.no_grad():
            features = self.conv(images)
        return self.linear(features.reshape(features.size(0), -1))

class DecoderRNN(nn.Module):
    def __init__(self, embed_size, hidden_size, vocab_size):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, embed_size)
        self.lstm = nn.LSTM(embed_size, hidden_size, 1, batch_first=True)
        self.linear = nn.Linear(hidden_size, vocab_size)
    def forward(self, features, captions, lengths):
        embeddings = torch.cat((features.unsqueeze(1), self.embed(captions)), 1)
        packed = pack_padded_sequence(embeddings, lengths, batch_first=True)
        hiddens, _ = self.lstm(packed)
        return self.linear(hiddens[0])
    def sample(self, features, states=None):
        ids, inputs = [], features.unsqueeze(1)
        for i in range(4):
            hiddens, states = self.lstm(inputs, states)
            _, predicted = self.linear(hiddens.squeeze(1)).max(1)
            ids.append(predicted)
            inputs = self.embed(predicted).unsqueeze(1)
        return torch.stack(ids, 1)

data_loader = DataLoader(Captions(), batch_size=5, shuffle=True, collate_fn=collate_fn)
encoder, decoder = EncoderCNN(4), DecoderRNN(4, 6, 9)
criterion = nn.CrossEntropyLoss()
params = list(decoder.parameters()) + list(encoder.linear.parameters())
optimizer = torch.optim.Adam(params, lr=0.01)
# %% cell
total_step = len(data_loader)
log = []
for epoch in range(2):
    for i, (images, captions, lengths) in enumerate(data_loader):
        targets = pack_padded_sequence(captions, lengths, batch_first=True)[0]
        features = encoder(images)
        outputs = decoder(features, captions, lengths)
        loss = criterion(outputs, targets)
        decoder.zero_grad()
        encoder.zero_grad()
        loss.backward()
        optimizer.step()
        log.append(loss.item())
        if i % 2 == 0:
            print("Epoch [{}/{}], Step [{}/{}], Loss: {:.4f}, Perplexity: {:5.4f}".format(epoch, 2, i, total_step, loss.item(), np.exp(loss.item())))
with torch.no_grad():
    ids = decoder.sample(encoder(images))
sentence = " ".join(str(word) for word in ids[0].cpu().numpy())
# %% compare
encoder.state_dict(), decoder.state_dict(), optimizer.state_dict(), log, ids, sentence
