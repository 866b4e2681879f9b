/**
 * Takes views of runs out of notebooks whose kernel can no longer feed them.
 *
 * While a run goes on, its cell shows a widget, and a summary that the widget
 * hides. The kernel takes the widget away when the run has ended; one that dies
 * does not, and a notebook that is opened without it would show an error.
 */

import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { TrainingModel } from './model/training';

const WIDGET = 'application/vnd.jupyter.widget-view+json';
/** As the kernel leaves it when a run has ended. */
const NOTHING = { 'text/plain': '', 'text/html': '' };

/** Do so from now on, in all open notebooks. */
export function clearDeadViews(
  tracker: INotebookTracker,
  model: TrainingModel
): void {
  const seen = new WeakMap<NotebookPanel, string>();

  const look = (): void => {
    tracker.forEach(panel => {
      const { state, dead } = stateOf(panel, model);
      // At the first look alone: views that come later are alive.
      if (seen.get(panel) !== state) {
        seen.set(panel, state);
        if (dead) {
          clear(panel);
        }
      }
    });
  };

  tracker.widgetAdded.connect((_, panel) => {
    void panel.context.ready.then(look);
    void panel.sessionContext.ready.then(look);
  });
  model.anyChanged.connect(look);
}

/** What is known of a notebook's kernel, and whether views that are there now are dead. */
function stateOf(
  panel: NotebookPanel,
  model: TrainingModel
): { state: string; dead: boolean } {
  const { context, sessionContext } = panel;
  const kernel = sessionContext.session?.kernel ?? null;
  if (!context.isReady || !sessionContext.isReady) {
    return { state: 'not ready', dead: false };
  }
  if (kernel === null) {
    return { state: 'no kernel', dead: sessionContext.hasNoKernel };
  }
  const connection = model.all.find(
    training => training.connection.kernel === kernel
  )?.connection;
  const status = connection?.status ?? 'waiting';
  return {
    state: `${kernel.id} ${status}`,
    dead:
      status === 'gone' ||
      status === 'absent' ||
      (status === 'connected' && connection?.state.running === false)
  };
}

function clear(panel: NotebookPanel): void {
  for (const cell of panel.model?.cells ?? []) {
    const { outputs } = cell as Partial<ICells>;
    for (let index = 0; index < (outputs?.length ?? 0); index++) {
      const output = outputs?.get(index);
      if (output?.metadata.jupyter_dtrain === 'run' && WIDGET in output.data) {
        output.setData({ data: NOTHING });
      }
    }
  }
}

/** The part of a code cell's model that is used here. */
interface ICells {
  outputs: {
    length: number;
    get(index: number): {
      data: Readonly<Record<string, unknown>>;
      metadata: Readonly<Record<string, unknown>>;
      setData(options: { data: Record<string, string> }): void;
    };
  };
}
