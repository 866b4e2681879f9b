/**
 * The run in the output of its cell where there is no JupyterLab: VS Code and
 * Colab get this module from the kernel, through anywidget.
 */

import { bindView, type IRunModel } from './bindView';
import { CellView } from './cellView';

function render(context: { model: IRunModel; el: HTMLElement }): () => void {
  const { model, el } = context;
  return bindView(model, summary => new CellView(el, summary));
}

export default { render };
