/**
 * The run in the output of its cell, as an anywidget: what is shown here works
 * in JupyterLab, Notebook 7, VS Code and Colab alike.
 *
 * It only watches. The kernel writes the whole picture into one trait while
 * its main thread runs the cell, and nothing is asked of it: since ipykernel
 * 7.4 an answer would come after the end of the cell.
 */

import type { ISnapshot } from '../protocol';
import { CellView } from './cellView';

/** The part of anywidget's model that is used here. */
interface IWidgetModel {
  get(name: 'snapshot'): ISnapshot | null;
  get(name: 'summary'): string;
  on(event: 'change:snapshot', callback: () => void): void;
  off(event: 'change:snapshot', callback: () => void): void;
}

function render(context: { model: IWidgetModel; el: HTMLElement }): () => void {
  const { model, el } = context;
  const view = new CellView(el, model.get('summary'));
  const update = (): void => {
    const snapshot = model.get('snapshot');
    if (snapshot !== null) {
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

export default { render };
