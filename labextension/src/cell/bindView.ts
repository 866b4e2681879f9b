/** Connects a widget's model to what shows it, whoever has made the model. */

import type { ISnapshot } from '../protocol';

/** The part of a widget's model that is used here. */
export interface IRunModel {
  get(name: string): unknown;
  on(event: string, callback: () => void): void;
  off(event: string, callback: () => void): void;
}

/** What shows a run. */
export interface IRunView {
  show(snapshot: ISnapshot): void;
  dispose(): void;
}

/** The ids that the kernel gives to summaries. */
const SUMMARY_ID = /^dtrain-[0-9a-f]{32}$/;

/**
 * Show what the model holds, now and whenever that changes.
 *
 * It only watches. The kernel writes the whole picture into one trait while
 * its main thread runs the cell, and nothing is asked of it: since ipykernel
 * 7.4 an answer would come after the end of the cell.
 *
 * A notebook from elsewhere may hold a model that no kernel of ours has made:
 * of its texts only an id of a summary is used for more than to be shown.
 *
 * @param model - The kernel's widget, or what a notebook says of one.
 * @param newView - Makes what shows the run in the place of the summary with
 * that id, where there is one.
 * @returns What ends it.
 */
export function bindView(
  model: IRunModel,
  newView: (summary: string | null) => IRunView
): () => void {
  const summary = model.get('summary');
  const isId = typeof summary === 'string' && SUMMARY_ID.test(summary);
  const view = newView(isId ? summary : null);
  const update = (): void => {
    const snapshot = model.get('snapshot') as ISnapshot | null | undefined;
    if (snapshot) {
      view.show(snapshot);
    }
  };
  model.on('change:snapshot', update);
  update();
  return () => {
    model.off('change:snapshot', update);
    view.dispose();
  };
}
