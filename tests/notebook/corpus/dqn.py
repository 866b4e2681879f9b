# A DQN: replay memory of tensors, random.sample, a target network, gather along actions.
# %% setup
import random
from collections import deque
import torch
from torch import nn

policy_net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
target_net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=0.01, amsgrad=True)
memory = deque(maxlen=50)
# %% cell
losses = []
state = torch.randn(1, 3)
for step in range(20):
    eps = 0.9 - 0.03 * step
    if random.random() > eps:
        with torch.no_grad():
            action = policy_net(state).max(1).indices.view(1, 1)
    else:
        action = torch.tensor([[random.randrange(2)]], dtype=torch.long)
    next_state = torch.randn(1, 3)
    reward = torch.tensor([float(next_state.sum() > 0) * action.item()])
    memory.append((state, action, next_state, reward))
    state = next_state
    if len(memory) < 8:
        continue
    batch = list(zip(*random.sample(memory, 8)))
    states, actions, next_states, rewards = (torch.cat(b) for b in batch)
    q = policy_net(states).gather(1, actions)
    with torch.no_grad():
        next_q = target_net(next_states).max(1).values
    loss = nn.SmoothL1Loss()(q, (next_q * 0.9 + rewards).unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    for key, value in policy_net.state_dict().items():
        target_net.state_dict()[key].mul_(0.99).add_(value * 0.01)
    losses.append(loss.item())
print(losses[-1])
# %% compare
policy_net.state_dict(), target_net.state_dict(), optimizer.state_dict(), losses
