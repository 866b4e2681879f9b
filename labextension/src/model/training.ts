/**
 * The training that the sidebar shows: that of the current notebook's kernel.
 *
 * A kernel that is no longer current keeps its connection until it is gone, so
 * that going back to its notebook shows at once what happened meanwhile.
 */

import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';
import { Archive } from './archive';
import type { KernelLink } from './comm';
import { Checkpoints } from './checkpoints';
import { Connection } from './connection';
import { Controls } from './controls';
import type { Absence } from './currentKernel';
import type { Ask } from './details';
import type { ICurveRun } from './lines';
import { PlotOptions } from './plotOptions';
import { RunEnds } from './runEnds';
import { RunSelection } from './runSelection';

/** What is known of one kernel's training, and what can be done to it. */
export interface ITraining {
  readonly connection: Connection;
  readonly controls: Controls;
  readonly archive: Archive;
  readonly checkpoints: Checkpoints;
  /** What the page of runs shows. */
  readonly page: RunSelection;
  /** The runs whose curves are drawn: the present one, then pinned ones. */
  curveRuns(): ICurveRun[];
}

/**
 * Why something changed: the kernel has told of its run, many times a second,
 * or the user has done something and waits to see it.
 */
export type Cause = 'telemetry' | 'action';

export class TrainingModel implements IDisposable {
  /** How curves are drawn, whichever notebook is current. */
  readonly plot = new PlotOptions();
  /** Tells of runs that end, in all notebooks. */
  readonly runEnds = new RunEnds();

  /** Emitted after any change to what is to be shown. */
  get changed(): ISignal<this, Cause> {
    return this._changed;
  }

  /** Emitted after any change in any kernel, current or not, and when another one is current. */
  get anyChanged(): ISignal<this, void> {
    return this._anyChanged;
  }

  /** The training of all kernels that are known and not gone. */
  get all(): readonly ITraining[] {
    return [...this._trainings.values()];
  }

  /** The current kernel's training; `null`: there is no kernel. */
  get current(): ITraining | null {
    return this._current;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Whether the user is looking at it. */
  get watched(): boolean {
    return this._watched;
  }

  set watched(value: boolean) {
    this._watched = value;
    if (this._current !== null) {
      this._current.connection.eager = value;
    }
  }

  /** Why there is no kernel, where there is none. */
  get absence(): Absence {
    return this._absence;
  }

  /** Show the training of another kernel. */
  follow(kernel: KernelLink | null, absence: Absence = 'no-kernel'): void {
    if (this._isDisposed) {
      return;
    }
    this._absence = absence;
    if (this._current !== null) {
      this._current.connection.eager = false;
    }
    this._current =
      kernel === null || kernel.isDisposed ? null : this._training(kernel);
    if (this._current !== null) {
      this._current.connection.eager = this._watched;
    }
    this._anyChanged.emit();
    this._changed.emit('action');
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._current = null;
    for (const { connection } of this._trainings.values()) {
      connection.dispose();
    }
    this._trainings.clear();
    Signal.clearData(this);
  }

  private _training(kernel: KernelLink): ITraining {
    const known = this._trainings.get(kernel);
    if (known !== undefined) {
      return known;
    }
    const connection = new Connection(kernel);
    const ask: Ask = (name, options) => connection.ask(name, options);
    const archive = new Archive(ask);
    const checkpoints = new Checkpoints(ask);
    const told = (): ICurveRun[] => {
      const { curves, trials } = connection.state;
      return curves === null ? [...trials] : [curves, ...trials];
    };
    // Of a run that has told nothing yet the record may know more.
    const live = (): ICurveRun[] => told().filter(run => run.series.size > 0);
    const page = new RunSelection(ask, live);
    const training: ITraining = {
      connection,
      controls: new Controls(connection),
      archive,
      checkpoints,
      page,
      curveRuns: () => {
        const shown = told();
        const ids = new Set(shown.map(run => run.runId));
        return [...shown, ...archive.pinned.filter(run => !ids.has(run.runId))];
      }
    };
    const onChanged = (cause: Cause): void => {
      this._anyChanged.emit();
      if (this._current === training) {
        this._changed.emit(cause);
      }
    };
    const onAction = (): void => {
      onChanged('action');
    };
    connection.changed.connect(() => {
      onChanged('telemetry');
    });
    this.runEnds.watch(connection);
    training.controls.changed.connect(onAction);
    archive.changed.connect(onAction);
    checkpoints.changed.connect(onAction);
    page.changed.connect(onAction);
    kernel.disposed.connect(() => {
      this._trainings.delete(kernel);
      this._anyChanged.emit();
    });
    this._trainings.set(kernel, training);
    return training;
  }

  private readonly _changed = new Signal<this, Cause>(this);
  private readonly _anyChanged = new Signal<this, void>(this);
  private readonly _trainings = new Map<KernelLink, ITraining>();
  private _current: ITraining | null = null;
  private _absence: Absence = 'no-notebook';
  private _watched = false;
  private _isDisposed = false;
}
