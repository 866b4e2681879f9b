/** Puts cells with code into the notebook, for the user to run. */

import { NotebookActions, type INotebookTracker } from '@jupyterlab/notebook';

/** Insert a cell below the active one of the current notebook, and go to it. */
export function insertCell(tracker: INotebookTracker, code: string): void {
  const notebook = tracker.currentWidget?.content;
  if (notebook === undefined) {
    return;
  }
  NotebookActions.insertBelow(notebook);
  notebook.activeCell?.model.sharedModel.setSource(code);
  void notebook.scrollToItem(notebook.activeCellIndex);
  notebook.activate();
}
