/** Runs and engines in JupyterLab's panel of all that is running. */

import type { INotebookTracker } from '@jupyterlab/notebook';
import type { IRunningSessions } from '@jupyterlab/running';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Signal, type ISignal } from '@lumino/signaling';
import { trainingIcon } from './icons';
import { shutDown } from './model/shutDown';
import type { ITraining, TrainingModel } from './model/training';
import { clusterPhaseText, runPhaseText } from './panels/texts';

export class RunningTraining implements IRunningSessions.IManager {
  constructor(
    private readonly _model: TrainingModel,
    private readonly _tracker: INotebookTracker,
    private readonly _trans: TranslationBundle,
    /** Bring the sidebar to the front. */
    private readonly _show: () => void
  ) {
    this.name = _trans.__('Distributed Training');
    this.shutdownLabel = _trans.__('Stop');
    this.shutdownAllLabel = _trans.__('Stop All');
    this.shutdownAllConfirmationText = _trans.__(
      'Stop all runs after their current steps, and stop their engines?'
    );
    _model.anyChanged.connect(this._onChanged, this);
  }

  readonly name: string;
  readonly shutdownLabel: string;
  readonly shutdownAllLabel: string;
  readonly shutdownAllConfirmationText: string;

  get runningChanged(): ISignal<this, void> {
    return this._runningChanged;
  }

  running(): IRunningSessions.IRunningItem[] {
    return this._model.all.flatMap(training => [
      ...this._runOf(training),
      ...this._clusterOf(training)
    ]);
  }

  shutdownAll(): void {
    for (const training of this._model.all) {
      void shutDown(training);
    }
  }

  refreshRunning(): void {
    this._runningChanged.emit();
  }

  private _runOf(training: ITraining): IRunningSessions.IRunningItem[] {
    const { run, running } = training.connection.state;
    if (run === null || !running) {
      return [];
    }
    return [
      {
        icon: () => trainingIcon,
        label: () => run.name,
        detail: () => runPhaseText(run.phase, this._trans),
        labelTitle: () => this._place(training),
        open: () => {
          this._open(training);
        },
        shutdown: () => void training.controls.send('stop_run')
      }
    ];
  }

  private _clusterOf(training: ITraining): IRunningSessions.IRunningItem[] {
    const { phase, engines } = training.connection.state.cluster;
    if (phase === 'stopped') {
      return [];
    }
    const { length } = engines;
    return [
      {
        icon: () => trainingIcon,
        label: () => this._trans._n('%1 engine', '%1 engines', length),
        detail: () => clusterPhaseText(phase, this._trans),
        labelTitle: () => this._place(training),
        open: () => {
          this._open(training);
        },
        shutdown: () => void shutDown(training)
      }
    ];
  }

  private _place(training: ITraining): string {
    return this._trans.__(
      'Notebook: %1',
      this._panel(training)?.context.path ?? ''
    );
  }

  private _open(training: ITraining): void {
    const panel = this._panel(training);
    if (panel !== undefined) {
      panel.activate();
    }
    this._show();
  }

  private _panel({
    connection
  }: ITraining): ReturnType<INotebookTracker['find']> {
    return this._tracker.find(
      panel => panel.sessionContext.session?.kernel === connection.kernel
    );
  }

  /** Tell of changes to the list: steps are none. */
  private _onChanged(): void {
    const now = JSON.stringify(
      this._model.all.map(({ connection: { state } }) => [
        state.run?.run_id,
        state.run?.phase,
        state.cluster.phase,
        state.cluster.engines.length
      ])
    );
    if (now !== this._shown) {
      this._shown = now;
      this._runningChanged.emit();
    }
  }

  private readonly _runningChanged = new Signal<this, void>(this);
  private _shown = '[]';
}
