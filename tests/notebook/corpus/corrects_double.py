# Phases in one loop: running_corrects.double() / dataset size, scheduler per epoch, the best weights kept.
# %% setup
import copy
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

def make(n):
    x = torch.randn(n, 5)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1).long())

image_datasets = {"train": make(43), "val": make(17)}
dataloaders = {k: DataLoader(v, batch_size=8, shuffle=(k == "train"), num_workers=0) for k, v in image_datasets.items()}
dataset_sizes = {k: len(v) for k, v in image_datasets.items()}
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

def train_model(model, criterion, optimizer, scheduler, num_epochs=2):
    best_model_wts = copy.deepcopy(model.state_dict())
    best_acc = 0.0
    history = {"train": [], "val": []}
    for epoch in range(num_epochs):
        print(f"Epoch {epoch}/{num_epochs - 1}")
        print("-" * 10)
        for phase in ["train", "val"]:
            if phase == "train":
                model.train()
            else:
                model.eval()
            running_loss = 0.0
            running_corrects = 0
            for inputs, labels in dataloaders[phase]:
                inputs = inputs.to(device)
                labels = labels.to(device)
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    _, preds = torch.max(outputs, 1)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running_loss += loss.item() * inputs.size(0)
                running_corrects += torch.sum(preds == labels.data)
            if phase == "train":
                scheduler.step()
            epoch_loss = running_loss / dataset_sizes[phase]
            epoch_acc = running_corrects.double() / dataset_sizes[phase]
            history[phase].append((epoch_loss, epoch_acc.item()))
            print(f"{phase} Loss: {epoch_loss:.4f} Acc: {epoch_acc:.4f}")
            if phase == "val" and epoch_acc > best_acc:
                best_acc = epoch_acc
                best_model_wts = copy.deepcopy(model.state_dict())
        print()
    print(f"Best val Acc: {best_acc:4f}")
    model.load_state_dict(best_model_wts)
    return model, history, best_acc

model_ft = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3)).to(device)
optimizer_ft = torch.optim.SGD(model_ft.parameters(), lr=0.2, momentum=0.9)
exp_lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer_ft, step_size=1, gamma=0.5)
# %% cell
model_ft, history, best_acc = train_model(model_ft, nn.CrossEntropyLoss(), optimizer_ft, exp_lr_scheduler)
# %% compare
model_ft.state_dict(), optimizer_ft.state_dict(), exp_lr_scheduler.state_dict(), history, best_acc
