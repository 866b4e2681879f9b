# REINFORCE on a bandit-like environment: no loader, Categorical, returns normalized, entropy bonus.
# %% setup
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

policy = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)

class Env:
    def reset(self):
        self.t = 0
        return np.array([0.0, 1.0])

    def step(self, action):
        self.t += 1
        state = np.array([self.t / 5, np.random.rand()])
        return state, float(action == self.t % 3), self.t >= 5

env = Env()
# %% cell
scores = []
for episode in range(4):
    state, done, log_probs, rewards, entropies = env.reset(), False, [], [], []
    while not done:
        dist = Categorical(logits=policy(torch.from_numpy(state)))
        action = dist.sample()
        log_probs.append(dist.log_prob(action))
        entropies.append(dist.entropy())
        state, reward, done = env.step(action.item())
        rewards.append(reward)
    R, returns = 0, []
    for r in rewards[::-1]:
        R = r + 0.9 * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-9)
    loss = -(torch.stack(log_probs) * returns).sum() - 0.01 * torch.stack(entropies).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scores.append(sum(rewards))
    print(f"Episode {episode}\tscore {scores[-1]}")
# %% compare
policy.state_dict(), optimizer.state_dict(), scores
