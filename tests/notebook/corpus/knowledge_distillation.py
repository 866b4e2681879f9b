# A frozen teacher and a student, KL of softened outputs with batchmean, T squared.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(30, 5), torch.randint(0, 3, (30,))), batch_size=7, shuffle=True)
teacher = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 3)).eval()
student = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
T, soft_target_loss_weight, ce_loss_weight = 2.0, 0.25, 0.75
# %% cell
def train_knowledge_distillation(teacher, student, train_loader, epochs):
    ce_loss = nn.CrossEntropyLoss()
    kl = nn.KLDivLoss(reduction="batchmean")
    teacher.eval()
    student.train()
    for epoch in range(epochs):
        running_loss = 0.0
        for inputs, labels in train_loader:
            optimizer.zero_grad()
            with torch.no_grad():
                teacher_logits = teacher(inputs)
            student_logits = student(inputs)
            soft_targets = nn.functional.softmax(teacher_logits / T, dim=-1)
            soft_prob = nn.functional.log_softmax(student_logits / T, dim=-1)
            soft_targets_loss = torch.sum(soft_targets * (soft_targets.log() - soft_prob)) / soft_prob.size()[0] * (T**2)
            label_loss = ce_loss(student_logits, labels)
            loss = soft_target_loss_weight * soft_targets_loss + ce_loss_weight * label_loss + 0.1 * kl(soft_prob, soft_targets)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        print(f"Epoch {epoch + 1}/{epochs}, Loss: {running_loss / len(train_loader)}")
    return running_loss

final = train_knowledge_distillation(teacher, student, loader, 2)
# %% compare
student.state_dict(), teacher.state_dict(), optimizer.state_dict(), final
