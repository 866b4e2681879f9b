/**
 * Code that is put into cells.
 *
 * A run may come from a folder that somebody else has written, and IPython
 * runs what stands in braces in a line of a magic: so an id is put there only
 * if it is one that our kernel gives to runs.
 */

/** As in `jupyter_dtrain/system/confined.py`. */
const RUN_ID = /^(?=.{1,128}$)[0-9a-z]+(-[0-9a-z]+)*$/;

export const LOAD_EXTENSION = '%load_ext jupyter_dtrain';

/** A cell that makes what `EXAMPLE` trains. */
export const EXAMPLE_SETUP = `import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

inputs = torch.randn(4096, 16)
targets = inputs.sin().sum(dim=1, keepdim=True)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=64, shuffle=True)

model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)`;

export const EXAMPLE = `%%distribute --engines 2
for epoch in range(5):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())`;

const MAGIC = /^%%distribute(?![\w])[^\n]*(?:\n|$)/;

/** Follow a detached run; `null`: it has no id that may stand in a cell. */
export function attachCode(runId: string): string | null {
  return RUN_ID.test(runId)
    ? `${LOAD_EXTENSION}\n%distribute attach ${runId}`
    : null;
}

/** Let a run go on from its last checkpoint, or from that of a step. */
export function resumeCode(runId: string, step?: number): string | null {
  const from = step === undefined ? '' : `@${step}`;
  return RUN_ID.test(runId) ? `%distribute resume ${runId}${from}` : null;
}

/** Read what a checkpoint holds. */
export function loadCode(runId: string, step: number): string | null {
  return RUN_ID.test(runId)
    ? `import jupyter_dtrain\ncheckpoint = jupyter_dtrain.load_checkpoint("${runId}", ${step})\nlist(checkpoint)`
    : null;
}

/** Whether a cell runs on the engines. */
export function isDistributed(source: string): boolean {
  return MAGIC.test(source.trimStart());
}

/**
 * A cell's text with the line of the magic on top, or without it where it is
 * there; `null`: another cell magic is, and a cell can have one only.
 */
export function toggleDistribute(source: string): string | null {
  if (isDistributed(source)) {
    return source.trimStart().replace(MAGIC, '');
  }
  return source.trimStart().startsWith('%%') ? null : `%%distribute\n${source}`;
}
