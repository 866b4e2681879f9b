/**
 * The runs that the runs page draws and compares, in the order in which they
 * were selected, with curves thinned to what many runs side by side can show.
 */

import { Signal, type ISignal } from '@lumino/signaling';
import { Archive, type PastRun } from './archive';
import { Checkpoints } from './checkpoints';
import type { Ask } from './details';
import type { ICurveRun } from './lines';
import { Series } from './series';
import { XPositions } from './xAxis';

/** Runs that are drawn at once, at most. */
export const MAX_DRAWN = 50;
/** Points of all runs' curves of one name, at most. */
const POINTS = 30_000;
/** Points of one curve, at least and at most. */
const LEAST = 200;
const MOST = 4000;
/** Of more runs at once, the curves come run by run: with each of hundreds, all charts would be drawn anew. */
const FEW = 3;
/** What the kernel calls the curves of devices. */
const DEVICES = 'device/';

export class RunSelection {
  /**
   * @param _live - The runs whose curves the kernel tells as they go on.
   */
  constructor(
    private readonly _ask: Ask,
    private readonly _live: () => readonly ICurveRun[] = () => []
  ) {
    this.archive = new Archive(_ask);
    this.checkpoints = new Checkpoints(_ask);
    const onChanged = (): void => {
      this._changed.emit();
    };
    this.archive.changed.connect(onChanged);
    this.checkpoints.changed.connect(onChanged);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The list of runs and their curves: the page's own, so that the sidebar draws what is ticked there. */
  readonly archive: Archive;
  readonly checkpoints: Checkpoints;

  /** The ids of the selected runs; the first is drawn in the first colour. */
  get ids(): readonly string[] {
    return this._ids;
  }

  /** The run whose own page is shown. */
  get opened(): string | null {
    return this._opened;
  }

  /** What a rank's device did in the run that is opened, a curve run for each rank. */
  get devices(): readonly ICurveRun[] {
    return this._devices;
  }

  /** The cell of the run that is opened. */
  get cell(): string | null {
    return this._cell;
  }

  /** The selected runs that are drawn and whose curves are here; of a run that goes on those that the kernel tells. */
  get curveRuns(): readonly ICurveRun[] {
    const known = new Map(
      [...this.archive.pinned, ...this._live()].map(
        run => [run.runId, run] as const
      )
    );
    return this._ids.slice(0, MAX_DRAWN).flatMap(id => known.get(id) ?? []);
  }

  /** Whether curves are being fetched: more will be here soon. */
  get isFetching(): boolean {
    return this._fetches > 0;
  }

  /** Select these runs and no others. */
  select(ids: readonly string[]): void {
    this._ids = [...ids];
    this._changed.emit();
    void this._fetch();
  }

  toggle(id: string): void {
    this.select(
      this._ids.includes(id)
        ? this._ids.filter(one => one !== id)
        : [...this._ids, id]
    );
  }

  /** Fetch the list of runs; select the newest at first, and drop those that are gone. */
  async refresh(): Promise<void> {
    await this.archive.refresh();
    const runs = this.archive.runs ?? [];
    const there = new Set(runs.map(run => run.run_id));
    const kept = this._ids.filter(id => there.has(id));
    const [newest] = runs;
    if (!this._isBegun && newest !== undefined) {
      this._isBegun = true;
      this.select([newest.run_id]);
    } else if (kept.length < this._ids.length) {
      this.select(kept);
    } else {
      await this._fetch(runs.filter(isGoingOn).map(run => run.run_id));
    }
    if (this._opened !== null && there.has(this._opened)) {
      await this.open(this._opened);
    }
  }

  /** Fetch what the page of one run shows. */
  async open(runId: string): Promise<void> {
    const run = this.archive.runs?.find(one => one.run_id === runId);
    if (run === undefined) {
      return;
    }
    if (this._opened !== runId) {
      this._opened = runId;
      this._devices = [];
      this._cell = null;
      this._changed.emit();
    }
    void this.checkpoints.refresh(runId);
    const cell = await this.archive.cellOf(run);
    const devices = await this._devicesOf(run);
    if (this._opened === runId) {
      this._cell = cell?.text ?? null;
      this._devices = devices;
      this._changed.emit();
    }
  }

  private async _devicesOf(run: PastRun): Promise<ICurveRun[]> {
    const ranks = new Map<string, Map<string, Series>>();
    try {
      const reply = await this._ask('get_curves', {
        run_id: run.run_id,
        curve: DEVICES,
        limit: MOST
      });
      for (const points of reply.points) {
        const [, rank = '', name = ''] = points.name.split('/');
        const one = new Series(name);
        // Their steps are those of the run at that moment: many have the same.
        one.add({ ...points, step: points.time.map(t => ms(t - run.started)) });
        const known = ranks.get(rank) ?? new Map<string, Series>();
        ranks.set(rank, known.set(name, one));
      }
    } catch {
      return []; // an older kernel knows no such question
    }
    return [...ranks].map(([rank, series]) => ({
      runId: `${run.run_id} ${rank}`,
      name: rank,
      series,
      positions: new XPositions(run.started, series)
    }));
  }

  /** Fetch the curves of selected runs that are not here, and `again` of some. */
  private async _fetch(again: readonly string[] = []): Promise<void> {
    const wanted = this._ids.slice(0, MAX_DRAWN);
    const limit = Math.max(
      LEAST,
      Math.min(MOST, Math.floor(POINTS / Math.max(1, wanted.length)))
    );
    const runs = new Map(
      (this.archive.runs ?? []).map(run => [run.run_id, run] as const)
    );
    for (const { runId } of this.archive.pinned) {
      const run = runs.get(runId);
      if (run !== undefined && !wanted.includes(runId)) {
        await this.archive.pin(run, false);
      }
    }
    const live = new Set(this._live().map(({ runId }) => runId));
    const missing = wanted.filter(
      id => !live.has(id) && (again.includes(id) || !this.archive.isPinned(id))
    );
    this._fetches += 1;
    await Promise.all(
      missing.map(async id => {
        const run = runs.get(id);
        if (run !== undefined) {
          await this.archive.pin(run, true, limit, missing.length > FEW);
        }
      })
    );
    this._fetches -= 1;
    if (missing.length > 0) {
      this._changed.emit();
    }
  }

  private readonly _changed = new Signal<this, void>(this);
  private _ids: string[] = [];
  private _opened: string | null = null;
  private _devices: readonly ICurveRun[] = [];
  private _cell: string | null = null;
  private _isBegun = false;
  private _fetches = 0;
}

function isGoingOn(run: PastRun): boolean {
  return run.ended === null && run.error === null;
}

function ms(seconds: number): number {
  return Math.max(0, Math.round(seconds * 1000));
}
