/** Opens the page of runs as a tab of the main area, once, and again after a reload. */

import type { ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import {
  MainAreaWidget,
  WidgetTracker,
  type IThemeManager
} from '@jupyterlab/apputils';
import {
  ToolbarButton,
  downloadIcon,
  refreshIcon
} from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import { trainingIcon } from '../icons';
import type { TrainingModel } from '../model/training';
import { RunsPage } from './runsPage';

export const RUNS_PAGE_ID = 'jp-dtrain-runs-page';

export interface IRunsPageOptions {
  app: JupyterFrontEnd;
  model: TrainingModel;
  trans: TranslationBundle;
  themes: IThemeManager | null;
  restorer: ILayoutRestorer | null;
  /** The command that opens it. */
  command: string;
}

/** Return what brings the page to the front. */
export function runsPageOpener(options: IRunsPageOptions): () => void {
  const { app, model, trans, themes, restorer, command } = options;
  const tracker = new WidgetTracker<MainAreaWidget<RunsPage>>({
    namespace: 'jupyter-dtrain-runs'
  });
  void restorer?.restore(tracker, { command, name: () => RUNS_PAGE_ID });
  let widget: MainAreaWidget<RunsPage> | null = null;
  return () => {
    if (widget === null || widget.isDisposed) {
      const content = new RunsPage(model, trans, themes);
      widget = new MainAreaWidget({ content });
      widget.id = RUNS_PAGE_ID;
      widget.title.label = trans.__('Runs');
      widget.title.caption = trans.__("Runs of the current notebook's folder");
      widget.title.icon = trainingIcon;
      widget.title.closable = true;
      widget.toolbar.addItem(
        'refresh',
        new ToolbarButton({
          icon: refreshIcon,
          label: trans.__('Refresh'),
          tooltip: trans.__('Reload the table of runs'),
          onClick: () => {
            content.refresh();
          }
        })
      );
      widget.toolbar.addItem(
        'save',
        new ToolbarButton({
          icon: downloadIcon,
          label: trans.__('CSV'),
          tooltip: trans.__('Save the table with all columns'),
          onClick: () => {
            content.save();
          }
        })
      );
      void tracker.add(widget);
    }
    if (!widget.isAttached) {
      app.shell.add(widget, 'main', { type: 'Training' });
    }
    app.shell.activateById(widget.id);
  };
}
