/** Wires the model to the notebooks and the sidebar to the model; no more. */

import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, IThemeManager } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { addCommands, CommandIDs } from './commands';
import { followCurrentKernel } from './model/currentKernel';
import { TrainingModel } from './model/training';
import { Sidebar, SIDEBAR_ID } from './panels/sidebar';
import { ITrainingModel } from './tokens';

const modelPlugin: JupyterFrontEndPlugin<ITrainingModel> = {
  id: 'jupyter-dtrain:model',
  description: "Provides the training of the current notebook's kernel.",
  autoStart: true,
  provides: ITrainingModel,
  requires: [INotebookTracker],
  activate: (_: JupyterFrontEnd, tracker: INotebookTracker) => {
    const model = new TrainingModel();
    followCurrentKernel(tracker, kernel => {
      model.follow(kernel);
    });
    return model;
  }
};

const sidebarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-dtrain:sidebar',
  description: 'Shows the cluster, the run and its curves in the sidebar.',
  autoStart: true,
  requires: [ITrainingModel],
  optional: [ITranslator, IThemeManager, ILayoutRestorer, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    model: ITrainingModel,
    translator: ITranslator | null,
    themes: IThemeManager | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jupyter_dtrain');
    const sidebar = new Sidebar(model, trans, themes);
    app.shell.add(sidebar, 'right', { rank: 900, type: 'Training' });
    restorer?.add(sidebar, SIDEBAR_ID);
    addCommands({
      commands: app.commands,
      model,
      trans,
      show: () => {
        app.shell.activateById(sidebar.id);
      }
    });
    for (const command of Object.values(CommandIDs)) {
      palette?.addItem({ command, category: trans.__('Distributed Training') });
    }
  }
};

const plugins = [modelPlugin, sidebarPlugin];

export default plugins;
export { ITrainingModel };
