/** Follows the current notebook to its kernel, through restarts and changes. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { KernelLink } from './comm';

/**
 * Why there is no kernel: no notebook is open, its kernel is on its way, or it
 * has none.
 */
export type Absence = 'no-notebook' | 'starting' | 'no-kernel';

/** Call `onKernel` with the current notebook's kernel, now and on changes. */
export function followCurrentKernel(
  tracker: INotebookTracker,
  onKernel: (kernel: KernelLink | null, absence: Absence) => void
): void {
  let session: ISessionContext | null = null;

  const update = (): void => {
    onKernel(session?.session?.kernel ?? null, absenceIn(session));
  };
  const onCurrent = (): void => {
    const next = tracker.currentWidget?.sessionContext ?? null;
    if (next !== session) {
      session?.kernelChanged.disconnect(update);
      session?.statusChanged.disconnect(update);
      session = next;
      session?.kernelChanged.connect(update);
      session?.statusChanged.connect(update);
      update();
      // A notebook that is opened without a kernel says so only then.
      void session?.ready.then(() => {
        if (next === session) {
          update();
        }
      });
    }
  };

  tracker.currentChanged.connect(onCurrent);
  onCurrent();
}

function absenceIn(session: ISessionContext | null): Absence {
  if (session === null) {
    return 'no-notebook';
  }
  return session.isReady && session.hasNoKernel ? 'no-kernel' : 'starting';
}
