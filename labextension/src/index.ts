/** Wires the model to the notebooks and the sidebar to the model; no more. */

import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, IThemeManager } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { registerRunWidget } from './cell/register';
import { NotebookCells } from './cells';
import { addCommands, CommandIDs } from './commands';
import { followCurrentKernel } from './model/currentKernel';
import { TrainingModel } from './model/training';
import { clearDeadViews } from './deadViews';
import { openAtFirstRun } from './introduction';
import { addNotifications } from './notifications';
import { runsPageOpener } from './page/open';
import { Sidebar, SIDEBAR_ID } from './panels/sidebar';
import { StatusItem } from './panels/statusItem';
import { RunningTraining } from './running';
import { Settings } from './settings';
import { ITrainingModel } from './tokens';

const modelPlugin: JupyterFrontEndPlugin<ITrainingModel> = {
  id: 'jupyter-dtrain:model',
  description: "Provides the training of the current notebook's kernel.",
  autoStart: true,
  provides: ITrainingModel,
  requires: [INotebookTracker],
  activate: (_: JupyterFrontEnd, tracker: INotebookTracker) => {
    const model = new TrainingModel();
    followCurrentKernel(tracker, (kernel, absence) => {
      model.follow(kernel, absence);
    });
    clearDeadViews(tracker, model);
    return model;
  }
};

const cellViewPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-dtrain:cell-view',
  description: 'Shows the run in the output of its cell.',
  autoStart: true,
  requires: [ITrainingModel],
  activate: registerRunWidget
};

const SIDEBAR_PLUGIN = 'jupyter-dtrain:sidebar';

const sidebarPlugin: JupyterFrontEndPlugin<void> = {
  id: SIDEBAR_PLUGIN,
  description: 'Shows the cluster, the run and its curves in the sidebar.',
  autoStart: true,
  requires: [ITrainingModel, INotebookTracker],
  optional: [
    ITranslator,
    IThemeManager,
    ILayoutRestorer,
    ICommandPalette,
    ISettingRegistry,
    IStatusBar,
    IRunningSessionManagers,
    ILauncher
  ],
  activate: (
    app: JupyterFrontEnd,
    model: ITrainingModel,
    tracker: INotebookTracker,
    translator: ITranslator | null,
    themes: IThemeManager | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null,
    registry: ISettingRegistry | null,
    statusBar: IStatusBar | null,
    running: IRunningSessionManagers | null,
    launcher: ILauncher | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jupyter_dtrain');
    const cells = new NotebookCells(app, tracker);
    const openRuns = runsPageOpener({
      app,
      model,
      trans,
      themes,
      restorer,
      command: CommandIDs.openRuns
    });
    const sidebar = new Sidebar(model, trans, themes, cells, openRuns);
    app.shell.add(sidebar, 'right', { rank: 900, type: 'Training' });
    restorer?.add(sidebar, SIDEBAR_ID);
    const show = (): void => {
      app.shell.activateById(sidebar.id);
    };
    addCommands({
      commands: app.commands,
      model,
      cells,
      trans,
      show,
      openRuns
    });
    running?.add(new RunningTraining(model, tracker, trans, show));
    const settings = new Settings();
    if (registry !== null) {
      void settings.follow(registry, SIDEBAR_PLUGIN, model.plot);
    }
    openAtFirstRun({ model, settings, show });
    addNotifications({
      model,
      trans,
      show,
      minSeconds: () => settings.notifyAfter
    });
    const item = new StatusItem(model, trans, show);
    statusBar?.registerStatusItem(SIDEBAR_PLUGIN, {
      item,
      align: 'left',
      rank: 100,
      isActive: () => item.isActive,
      activeStateChanged: item.activeChanged
    });
    launcher?.add({
      command: CommandIDs.openRuns,
      args: { isLauncher: true },
      category: trans.__('Other')
    });
    for (const command of Object.values(CommandIDs)) {
      palette?.addItem({ command, category: trans.__('Distributed Training') });
    }
  }
};

const plugins = [modelPlugin, cellViewPlugin, sidebarPlugin];

export default plugins;
export { ITrainingModel };
