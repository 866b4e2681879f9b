# tolerance: 3e-2
# Autocast in bfloat16 with a GradScaler, as one would write it for a GPU.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(40, 8, dtype=torch.float32)
y = torch.randint(0, 3, (40,))
loader = DataLoader(TensorDataset(X, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).float()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
criterion = nn.CrossEntropyLoss()
# %% cell
losses = []
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            outputs = model(inputs)
            loss = criterion(outputs, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
print("scale", scaler.get_scale(), outputs.dtype, len(losses))
# %% compare
model.state_dict(), losses
