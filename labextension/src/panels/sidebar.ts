/** The sidebar: its sections one below the other, scrolled as one. */

import type { IThemeManager } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Panel } from '@lumino/widgets';
import type { NotebookCells } from '../cells';
import { trainingIcon } from '../icons';
import type { TrainingModel } from '../model/training';
import { CheckpointsView } from './checkpoints';
import { ClusterView } from './cluster';
import { CurvesView } from './curves';
import { NoticesView } from './notices';
import { RunView } from './run';
import { RunsView } from './runs';
import { StatusView } from './status';
import { TimesView } from './times';

export const SIDEBAR_ID = 'jp-dtrain-sidebar';

export class Sidebar extends Panel {
  constructor(
    private readonly _model: TrainingModel,
    trans: TranslationBundle,
    themes: IThemeManager | null,
    cells: NotebookCells,
    openRuns: () => void
  ) {
    super();
    this.id = SIDEBAR_ID;
    this.addClass('jp-dtrain-sidebar');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Distributed training'));
    this.title.icon = trainingIcon;
    this.title.caption = trans.__('Distributed training');
    this.addWidget(new StatusView('jp-dtrain-status', _model, trans, cells));
    this.addWidget(new RunView('jp-dtrain-run', _model, trans, cells));
    this.addWidget(new CurvesView(_model, trans, themes));
    this.addWidget(
      new CheckpointsView('jp-dtrain-checkpoints', _model, trans, code => {
        cells.insert(code);
      })
    );
    this.addWidget(new TimesView('jp-dtrain-times', _model, trans));
    this.addWidget(new ClusterView('jp-dtrain-cluster', _model, trans));
    this.addWidget(
      new RunsView('jp-dtrain-runs', _model, trans, cells, openRuns)
    );
    this.addWidget(new NoticesView('jp-dtrain-notices', _model, trans));
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._model.watched = true;
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._model.watched = this.isVisible;
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._model.watched = false;
  }
}
