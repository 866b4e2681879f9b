# Word embeddings: skip-gram with negative sampling, sampled in the cell by weights, cosine similarities at the end.
# %% setup
from collections import Counter
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
import torch.nn.functional as F

words = ("the quick brown fox jumps over the lazy dog and the dog barks at the quick fox " * 2).split()
vocab = sorted(set(words))
word_to_ix = {word: i for i, word in enumerate(vocab)}
counts = Counter(words)
freqs = torch.tensor([counts[w] for w in vocab], dtype=torch.float64) ** 0.75
pairs = [(word_to_ix[words[i]], word_to_ix[words[j]]) for i in range(len(words)) for j in (i - 1, i + 1) if 0 <= j < len(words)]

class SkipGram(nn.Module):
    def __init__(self, vocab_size, dim):
        super().__init__()
        self.in_embed, self.out_embed = nn.Embedding(vocab_size, dim), nn.Embedding(vocab_size, dim)
        self.in_embed.weight.data.uniform_(-1, 1)

    def forward_input(self, words):
        return self.in_embed(words)

    def forward_output(self, words):
        return self.out_embed(words)

    def forward_noise(self, batch_size, n_samples, noise_dist):
        noise_words = torch.multinomial(noise_dist, batch_size * n_samples, replacement=True)
        return self.out_embed(noise_words).view(batch_size, n_samples, -1)

class NegativeSamplingLoss(nn.Module):
    def forward(self, input_vectors, output_vectors, noise_vectors):
        batch_size, embed_size = input_vectors.shape
        input_vectors = input_vectors.view(batch_size, embed_size, 1)
        output_vectors = output_vectors.view(batch_size, 1, embed_size)
        out_loss = torch.bmm(output_vectors, input_vectors).sigmoid().log().squeeze()
        noise_loss = torch.bmm(noise_vectors.neg(), input_vectors).sigmoid().log()
        noise_loss = noise_loss.squeeze().sum(1)
        return -(out_loss + noise_loss).mean()

model = SkipGram(len(vocab), 4)
criterion = NegativeSamplingLoss()
optimizer = optim.Adam(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(pairs, batch_size=16, shuffle=True)
# %% cell
steps = 0
for e in range(2):
    for input_words, target_words in loader:
        steps += 1
        inputs, targets = torch.LongTensor(input_words), torch.LongTensor(target_words)
        input_vectors = model.forward_input(inputs)
        output_vectors = model.forward_output(targets)
        noise_vectors = model.forward_noise(inputs.shape[0], 3, freqs)
        loss = criterion(input_vectors, output_vectors, noise_vectors)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if steps % 3 == 0:
            print("Epoch: {}/{}".format(e + 1, 2), "Loss: ", round(loss.item(), 6))
embeddings = model.in_embed.weight.to("cpu").data.numpy()
sims = F.cosine_similarity(model.in_embed.weight[0:1], model.in_embed.weight)
closest = [vocab[i] for i in sims.topk(4).indices]
print(closest)
# %% compare
model.state_dict(), optimizer.state_dict(), embeddings, sims, closest, steps
