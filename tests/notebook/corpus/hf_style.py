# Hugging Face style: batches as dicts into model(**batch), an output object with loss and logits, a linear schedule, a metric object.
# %% setup
from collections import OrderedDict
from dataclasses import dataclass
from typing import Optional
import numpy as np
import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

class ModelOutput(OrderedDict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name)
    def to_tuple(self):
        return tuple(self.values())

class Tokenized(Dataset):
    def __init__(self, n):
        self.ids = [torch.randint(1, 20, (3 + i % 4,)) for i in range(n)]
        self.labels = [i % 2 for i in range(n)]
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "label": self.labels[i]}

def data_collator(features):
    longest = max(len(f["input_ids"]) for f in features)
    ids = torch.zeros(len(features), longest, dtype=torch.long)
    mask = torch.zeros(len(features), longest, dtype=torch.long)
    for row, f in enumerate(features):
        ids[row, : len(f["input_ids"])] = f["input_ids"]
        mask[row, : len(f["input_ids"])] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([f["label"] for f in features])}

class ForSequenceClassification(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(20, 8, padding_idx=0)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 1)
        self.classifier = nn.Linear(8, 2)
    def forward(self, input_ids, attention_mask=None, labels=None):
        hidden = self.encoder(self.embeddings(input_ids), src_key_padding_mask=attention_mask == 0)
        pooled = (hidden * attention_mask.unsqueeze(-1)).sum(1) / attention_mask.sum(1, keepdim=True)
        logits = self.classifier(pooled)
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return ModelOutput(loss=loss, logits=logits)

class Metric:
    def __init__(self):
        self.predictions, self.references = [], []
    def add_batch(self, predictions, references):
        self.predictions.extend(predictions.tolist())
        self.references.extend(np.asarray(references).tolist())
    def compute(self):
        acc = float(np.mean(np.array(self.predictions) == np.array(self.references)))
        self.__init__()
        return {"accuracy": acc}

train_dataloader = DataLoader(Tokenized(21), shuffle=True, batch_size=6, collate_fn=data_collator)
eval_dataloader = DataLoader(Tokenized(9), batch_size=6, collate_fn=data_collator)
model = ForSequenceClassification()
optimizer = AdamW(model.parameters(), lr=5e-3)
num_epochs = 2
num_training_steps = num_epochs * len(train_dataloader)
lr_scheduler = LambdaLR(optimizer, lambda step: max(0.0, (num_training_steps - step) / num_training_steps))
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
model.to(device)
metric = Metric()
# %% cell
progress_bar = tqdm(range(num_training_steps))
model.train()
train_losses, scores = [], []
for epoch in range(num_epochs):
    for batch in train_dataloader:
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        progress_bar.update(1)
        progress_bar.set_postfix(loss=loss.item())
        train_losses.append(loss.detach().cpu().numpy().item())
        metric.add_batch(predictions=outputs.logits.argmax(-1), references=batch["labels"])
    scores.append(metric.compute())
    model.eval()
    for batch in eval_dataloader:
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.no_grad():
            outputs = model(**batch)
        logits = outputs.logits
        predictions = torch.argmax(logits, dim=-1)
        metric.add_batch(predictions=predictions, references=batch["labels"])
    scores.append(metric.compute())
    model.train()
    print(epoch, scores[-2:])
# %% compare
model.state_dict(), optimizer.state_dict(), lr_scheduler.state_dict(), train_losses, scores, logits
