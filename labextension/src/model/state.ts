/**
 * What is known of one kernel's cluster and run: the sum of its updates.
 *
 * A plain object that `apply` changes in place and that anybody may read; the
 * connection that feeds it says when it changed. It knows no DOM and no comm.
 */

import {
  RUN_PHASES_ENDED,
  type IClusterUpdate,
  type IDetachedRun,
  type IDeviceUse,
  type INotice,
  type IPoints,
  type IRunUpdate,
  type ISnapshot,
  type ITrialRun,
  type ITrialRuns,
  type Nested,
  type RunPhase,
  type Update
} from '../protocol';
import { DeviceHistory } from './deviceHistory';
import type { ICurveRun } from './lines';
import { Series } from './series';
import { countTrials, type ITrialCount } from './sweeps';
import { RankTimes, type TimeSplit } from './times';
import { XPositions } from './xAxis';

/**
 * A run's phase as the views show it. `lost`: its kernel went away before the
 * run had ended, so how it ended is not known here. `alone`: its kernel went
 * away, and it goes on without one.
 */
export type ShownPhase = RunPhase | 'lost' | 'alone';

export type Cluster = Nested<IClusterUpdate>;
export type Run = Omit<Nested<IRunUpdate>, 'phase'> & { phase: ShownPhase };
export type DeviceUse = Nested<IDeviceUse>;
export type DetachedRun = Nested<IDetachedRun>;

/** More notices than this are not kept: the oldest go first. */
const MAX_NOTICES = 50;

const NO_CLUSTER: Cluster = {
  phase: 'stopped',
  engines: [],
  lost_hosts: [],
  detail: ''
};

export class TrainingState {
  cluster: Cluster = NO_CLUSTER;
  run: Run | null = null;
  /** When `run` was last told, in milliseconds since the epoch. */
  runReceived = 0;
  /** The newest device use by rank. */
  readonly devices = new Map<number, DeviceUse>();
  /** The use of each device over the last minutes, by rank. */
  readonly histories = new Map<number, DeviceHistory>();
  /** The curves of the run by name, in the order in which they appeared. */
  readonly series = new Map<string, Series>();
  readonly notices: Nested<INotice>[] = [];
  /** Where each rank's time goes, by rank. */
  readonly times = new Map<number, RankTimes>();

  /** The run with its curves, as charts take it. */
  get curves(): ICurveRun | null {
    const { run, series } = this;
    if (run === null) {
      return null;
    }
    if (this._curves?.runId !== run.run_id) {
      const positions = new XPositions(run.started, series);
      this._curves = { runId: run.run_id, name: run.name, series, positions };
    }
    return this._curves;
  }

  /** The runs of the folder that no kernel follows, but for the one that is shown. */
  get strays(): DetachedRun[] {
    return this._detached.filter(({ run_id }) => run_id !== this._runId);
  }

  /** The other trials of the cell that have begun, as charts take them. */
  get trials(): ICurveRun[] {
    return [...this._trials.values()].filter(
      trial => trial.runId !== this._runId
    );
  }

  /** How many trials of the cell there are and have ended; `null`: it has none. */
  get trialCount(): ITrialCount | null {
    return countTrials(this._told);
  }

  /** Whether a run is under way (one that may still change). */
  get running(): boolean {
    return this.run !== null && !hasEnded(this.run.phase);
  }

  apply(update: Update, now: number = Date.now()): void {
    switch (update.type) {
      case 'snapshot':
        this._applySnapshot(update, now);
        break;
      case 'cluster_update':
        this._setCluster(update);
        break;
      case 'run_update':
        this._setRun(update, now);
        break;
      case 'trial_runs':
        this._setTrials(update);
        break;
      case 'points':
        this._addPoints(update);
        break;
      case 'device_use':
        this._addDeviceUse(update);
        break;
      case 'time_split':
        this._addTimes(update);
        break;
      case 'notice':
        this._addNotice(update);
        break;
    }
  }

  /** The kernel is gone, and with it the cluster and what was running. */
  lose(): void {
    this.cluster = NO_CLUSTER;
    this.devices.clear();
    this.histories.clear();
    if (this.run !== null && !hasEnded(this.run.phase)) {
      this.run = { ...this.run, phase: this.run.detached ? 'alone' : 'lost' };
    }
  }

  private _applySnapshot(snapshot: ISnapshot, now: number): void {
    this._setCluster(snapshot.cluster);
    this.devices.clear();
    for (const device of snapshot.devices) {
      this._addDeviceUse(device);
    }
    this._detached = snapshot.detached;
    // A restarted kernel knows of no run; the last one stays to be read.
    if (snapshot.run === null) {
      this._settleAlone();
    } else {
      this._setTrials(snapshot.trials);
      this._setRun(snapshot.run, now);
      // The curves are merged, not replaced: points that overtook the snapshot
      // stay.
      for (const points of snapshot.points) {
        this._addPoints(points);
      }
      for (const times of snapshot.times) {
        this._addTimes(times);
      }
      for (const notice of snapshot.notices) {
        this._addNotice(notice);
      }
    }
  }

  /** Of the run that goes on alone, the next kernel knows whether it still does. */
  private _settleAlone(): void {
    const { run } = this;
    const found = this._detached.find(({ run_id }) => run_id === run?.run_id);
    if (run?.phase === 'alone' && found === undefined) {
      this.run = { ...run, phase: 'lost' };
    }
  }

  private _setCluster(cluster: Cluster): void {
    this.cluster = cluster;
    const ranks = new Set(cluster.engines.map(engine => engine.rank));
    for (const rank of this.devices.keys()) {
      if (!ranks.has(rank)) {
        this.devices.delete(rank);
        this.histories.delete(rank);
      }
    }
  }

  private _setRun(run: Nested<IRunUpdate>, now: number): void {
    this._enterRun(run.run_id);
    if (this.run !== null && run.step < this.run.step) {
      // It goes on from a checkpoint: what came after it is made anew.
      for (const series of this.series.values()) {
        series.cut(run.step);
      }
    }
    this.run = run;
    this.runReceived = now;
  }

  private _addPoints(points: Nested<IPoints>): void {
    const { run_id, name } = points;
    const trial = this._trials.get(run_id);
    if (trial === undefined) {
      this._enterRun(run_id);
    }
    const all = run_id === this._runId ? this.series : trial?.series;
    let series = all?.get(name);
    if (series === undefined) {
      series = new Series(name);
      all?.set(name, series);
    }
    series.add(points);
  }

  /** Know of the trials of a cell; the curves of those that were known stay. */
  private _setTrials(trials: Nested<ITrialRuns> | null): void {
    const known = new Map(this._trials);
    this._trials.clear();
    this._told = trials;
    const runs: readonly Nested<ITrialRun>[] = trials?.runs ?? [];
    for (const { run_id, name, started, pruned_at } of runs) {
      const trial = known.get(run_id) ?? trialOf(run_id, name, started);
      this._trials.set(run_id, trial);
      if (pruned_at !== null) {
        // What it trained until it was told is taken back.
        for (const series of trial.series.values()) {
          series.cut(pruned_at);
        }
      }
    }
  }

  /**
   * Forget the curves and notices of another run than `runId`. Of a trial the
   * curves stay, beside those of another trial.
   */
  private _enterRun(runId: string): void {
    if (this._runId !== runId) {
      move(this.series, this._trials.get(this._runId ?? '')?.series);
      if (!this._trials.has(runId)) {
        this._trials.clear();
        this._told = null;
      }
      move(this._trials.get(runId)?.series, this.series);
      this._runId = runId;
      this.run = null;
      this.times.clear();
      this.notices.length = 0;
    }
  }

  private _addDeviceUse(use: DeviceUse): void {
    this.devices.set(use.rank, use);
    let history = this.histories.get(use.rank);
    if (history === undefined) {
      history = new DeviceHistory();
      this.histories.set(use.rank, history);
    }
    history.add(use);
  }

  private _addTimes(split: TimeSplit): void {
    const times = this.times.get(split.rank);
    if (times === undefined) {
      this.times.set(split.rank, new RankTimes(split));
    } else {
      times.add(split);
    }
  }

  /** Equal texts from several ranks are one notice, as equal errors are. */
  private _addNotice(notice: Nested<INotice>): void {
    if (this.notices.some(other => other.text === notice.text)) {
      return;
    }
    this.notices.push(notice);
    if (this.notices.length > MAX_NOTICES) {
      this.notices.shift();
    }
  }

  private _runId: string | null = null;
  private _detached: readonly DetachedRun[] = [];
  private _curves: ICurveRun | null = null;
  private _told: Nested<ITrialRuns> | null = null;
  private readonly _trials = new Map<string, ITrial>();
}

/** A trial beside the run that is shown; of that one, without its curves. */
interface ITrial extends ICurveRun {
  series: Map<string, Series>;
}

function trialOf(runId: string, name: string, started: number): ITrial {
  const series = new Map<string, Series>();
  return { runId, name, series, positions: new XPositions(started, series) };
}

function move<K, V>(
  from: Map<K, V> | undefined,
  to: Map<K, V> | undefined
): void {
  for (const [key, value] of from ?? []) {
    to?.set(key, value);
  }
  from?.clear();
}

/** Whether a run in this phase changes no more. */
export function hasEnded(phase: ShownPhase): boolean {
  return (
    phase === 'lost' || phase === 'alone' || RUN_PHASES_ENDED.includes(phase)
  );
}
