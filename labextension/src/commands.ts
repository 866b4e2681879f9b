/** The commands of the palette and menus: what the sidebar's buttons do. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import type { NotebookCells } from './cells';
import { trainingIcon } from './icons';
import { RUN_COMMANDS } from './model/controls';
import type { TrainingModel } from './model/training';
import { obstacleText } from './panels/texts';
import type { CommandName } from './protocol';

export const CommandIDs = {
  show: 'jupyter-dtrain:show',
  openRuns: 'jupyter-dtrain:open-runs',
  stopRun: 'jupyter-dtrain:stop-run',
  pauseRun: 'jupyter-dtrain:pause-run',
  resumeRun: 'jupyter-dtrain:resume-run',
  checkpointNow: 'jupyter-dtrain:checkpoint-now',
  startCluster: 'jupyter-dtrain:start-cluster',
  stopCluster: 'jupyter-dtrain:stop-cluster',
  distributeCell: 'jupyter-dtrain:distribute-cell'
} as const;

export interface ICommandOptions {
  commands: CommandRegistry;
  model: TrainingModel;
  cells: NotebookCells;
  trans: TranslationBundle;
  /** Bring the sidebar to the front. */
  show: () => void;
  /** Open the page of runs. */
  openRuns: () => void;
}

/** Add the commands; those that act on a run are enabled when they can. */
export function addCommands(options: ICommandOptions): void {
  const { commands, model, cells, trans, show, openRuns } = options;
  commands.addCommand(CommandIDs.show, {
    label: trans.__('Show Distributed Training'),
    caption: trans.__('Show the run and the engines of the current notebook'),
    icon: trainingIcon,
    execute: show,
    describedBy: { args: NO_ARGUMENTS }
  });

  commands.addCommand(CommandIDs.openRuns, {
    label: args =>
      args.isLauncher === true
        ? trans.__('Training Runs')
        : trans.__('Open Training Runs'),
    caption: trans.__('Compare all recorded runs in a tab'),
    icon: trainingIcon,
    execute: openRuns,
    describedBy: {
      args: { type: 'object', properties: { isLauncher: { type: 'boolean' } } }
    }
  });

  commands.addCommand(CommandIDs.distributeCell, {
    label: () =>
      cells.isDistributed
        ? trans.__('Stop Distributing This Cell')
        : trans.__('Distribute This Cell'),
    caption: () =>
      cells.isDistributed
        ? trans.__('Remove %%distribute: run this cell in the kernel')
        : trans.__('Add %%distribute: run this cell on all engines'),
    icon: trainingIcon,
    isToggled: () => cells.isDistributed,
    isEnabled: () => cells.canDistribute,
    execute: () => {
      cells.toggleDistribute();
      commands.notifyCommandChanged(CommandIDs.distributeCell);
    },
    describedBy: { args: NO_ARGUMENTS }
  });

  const addControl = (
    id: string,
    name: CommandName,
    label: string,
    caption: string
  ): void => {
    const obstacle = (): string | null => {
      const found = model.current?.controls.obstacle(name);
      return found === null || found === undefined
        ? null
        : obstacleText(found, trans);
    };
    commands.addCommand(id, {
      label,
      caption: () => obstacle() ?? caption,
      isEnabled: () => model.current?.controls.obstacle(name) === null,
      execute: () => model.current?.controls.send(name),
      describedBy: { args: NO_ARGUMENTS }
    });
  };
  addControl(
    CommandIDs.stopRun,
    'stop_run',
    trans.__('Stop the Distributed Run'),
    trans.__('Stop after the current step and keep its weights')
  );
  addControl(
    CommandIDs.pauseRun,
    'pause_run',
    trans.__('Pause the Distributed Run'),
    trans.__('Pause after the current step')
  );
  addControl(
    CommandIDs.resumeRun,
    'resume_run',
    trans.__('Resume the Distributed Run'),
    trans.__('Resume training')
  );
  addControl(
    CommandIDs.checkpointNow,
    'checkpoint_now',
    trans.__('Write a Checkpoint of the Distributed Run'),
    trans.__('Write a checkpoint to disk and keep it')
  );
  addControl(
    CommandIDs.startCluster,
    'start_cluster',
    trans.__('Start Training Engines'),
    trans.__('Start one engine for each device')
  );
  addControl(
    CommandIDs.stopCluster,
    'stop_cluster',
    trans.__('Stop Training Engines'),
    trans.__('Stop the engines of the current notebook')
  );

  let enabled = '';
  model.changed.connect(() => {
    const { current } = model;
    const now = String(
      CONTROLS.map(name => current?.controls.obstacle(name) ?? null)
    );
    if (now !== enabled) {
      enabled = now;
      commands.notifyCommandChanged();
    }
  });
}

const CONTROLS: readonly CommandName[] = [
  ...RUN_COMMANDS,
  'start_cluster',
  'stop_cluster'
];
const NO_ARGUMENTS = { type: 'object', properties: {} } as const;
