/** Follows the current notebook to its kernel, through restarts and changes. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { KernelLink } from './comm';

/** Call `onKernel` with the current notebook's kernel, now and on changes. */
export function followCurrentKernel(
  tracker: INotebookTracker,
  onKernel: (kernel: KernelLink | null) => void
): void {
  let session: ISessionContext | null = null;

  const update = (): void => {
    onKernel(session?.session?.kernel ?? null);
  };
  const onCurrent = (): void => {
    const next = tracker.currentWidget?.sessionContext ?? null;
    if (next !== session) {
      session?.kernelChanged.disconnect(update);
      session = next;
      session?.kernelChanged.connect(update);
      update();
    }
  };

  tracker.currentChanged.connect(onCurrent);
  onCurrent();
}
