/** The cells of open notebooks: puts one there, and finds one again. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import {
  NotebookActions,
  type INotebookTracker,
  type NotebookPanel
} from '@jupyterlab/notebook';
import type { RunCell } from './model/archive';
import { isDistributed, toggleDistribute } from './model/code';

export class NotebookCells {
  constructor(
    private readonly _app: JupyterFrontEnd,
    private readonly _tracker: INotebookTracker
  ) {}

  /** Insert a cell with code below the active one of the current notebook, and go to it. */
  insert(code: string): void {
    const notebook = this._tracker.currentWidget?.content;
    if (notebook === undefined) {
      return;
    }
    NotebookActions.insertBelow(notebook);
    notebook.activeCell?.model.sharedModel.setSource(code);
    void notebook.scrollToItem(notebook.activeCellIndex);
    notebook.activate();
  }

  /** Insert a cell with code below the active one, and run it. */
  insertAndRun(code: string): void {
    this.insert(code);
    const panel = this._tracker.currentWidget;
    if (panel !== null) {
      void NotebookActions.run(panel.content, panel.sessionContext);
    }
  }

  /** Whether the active cell is one of code, which could run on engines. */
  get canDistribute(): boolean {
    const model = this._tracker.activeCell?.model;
    return (
      model?.type === 'code' &&
      toggleDistribute(model.sharedModel.getSource()) !== null
    );
  }

  /** Whether the active cell runs on the engines. */
  get isDistributed(): boolean {
    const model = this._tracker.activeCell?.model;
    return (
      model?.type === 'code' && isDistributed(model.sharedModel.getSource())
    );
  }

  /** Put `%%distribute` on top of the active cell, or take it away. */
  toggleDistribute(): void {
    const model = this._tracker.activeCell?.model;
    const changed = toggleDistribute(model?.sharedModel.getSource() ?? '%%');
    if (changed !== null) {
      model?.sharedModel.setSource(changed);
    }
  }

  /**
   * Go to the cell that made a run, by its id or else by its text, in an open
   * notebook or in that of the run; return whether it is still there.
   */
  async goTo(cell: RunCell): Promise<boolean> {
    const panels = await this._panels(cell.notebook);
    for (const fits of [hasId(cell), hasText(cell)]) {
      for (const panel of panels) {
        const index = panel.content.widgets.findIndex(one => fits(one.model));
        if (index >= 0) {
          await this._select(panel, index);
          return true;
        }
      }
    }
    return false;
  }

  /** The open notebooks, that with this name first, which is opened. */
  private async _panels(name: string | null): Promise<NotebookPanel[]> {
    const current = this._tracker.currentWidget;
    const own = name === null ? null : await this._open(name, current);
    const panels = [own, current].filter(panel => panel !== null);
    this._tracker.forEach(panel => panels.push(panel));
    return [...new Set(panels)];
  }

  /** The notebook of this name beside the current one; `null`: none is there. */
  private async _open(
    name: string,
    current: NotebookPanel | null
  ): Promise<NotebookPanel | null> {
    const folder = current?.context.path.replace(/[^/]*$/, '') ?? '';
    const path = `${folder}${name}`;
    const { contents } = this._app.serviceManager;
    const isOpen = (panel: NotebookPanel): boolean =>
      panel.context.path === path;
    try {
      if (this._tracker.find(isOpen) === undefined) {
        await contents.get(path, { content: false });
        await this._app.commands.execute('docmanager:open', { path });
      }
    } catch {
      return null; // renamed, or deleted
    }
    const panel = this._tracker.find(isOpen) ?? null;
    await panel?.revealed;
    return panel;
  }

  private async _select(panel: NotebookPanel, index: number): Promise<void> {
    const { content } = panel;
    this._app.shell.activateById(panel.id);
    content.deselectAll();
    content.activeCellIndex = index;
    await content.scrollToItem(index);
  }
}

interface ICellModel {
  id: string;
  sharedModel: { getSource(): string };
}

function hasId({ cell_id }: RunCell): (model: ICellModel) => boolean {
  return ({ id }) => id === cell_id;
}

/** The text of a run is what stands below the line of the magic. */
function hasText({ text }: RunCell): (model: ICellModel) => boolean {
  const wanted = text.trimEnd();
  return ({ sharedModel }) => {
    const [first = '', ...rest] = sharedModel.getSource().split('\n');
    return first.startsWith('%%') && rest.join('\n').trimEnd() === wanted;
  };
}
