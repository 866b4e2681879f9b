/**
 * The past runs of the notebook's folder, as the kernel's record has them, and
 * those of them whose curves are drawn beside the present run's.
 */

import { Signal, type ISignal } from '@lumino/signaling';
import type {
  CommandName,
  IComparison,
  IPastRun,
  IRunCell,
  IRunOutput,
  Nested
} from '../protocol';
import { Details, type Ask } from './details';
import type { ICurveRun } from './lines';
import { Series } from './series';
import { XPositions } from './xAxis';

export type PastRun = Nested<IPastRun>;
export type Comparison = Nested<IComparison>;
export type RunCell = Nested<IRunCell>;
export type RunOutput = Nested<IRunOutput>;
/** Of a hyperparameter. */
export type Value = PastRun['hyperparameters'][string];

/** Curves of so many steps take the kernel a while to thin. */
const LONG = 20_000;

export class Archive {
  constructor(private readonly _ask: Ask) {
    this.details = new Details(_ask);
    this.details.changed.connect(() => {
      this._changed.emit();
    });
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Fetches what a curve lacks here. */
  readonly details: Details;

  /** The newest first; `null` before they were asked for. */
  get runs(): readonly PastRun[] | null {
    return this._runs;
  }

  /** What went wrong with the last question, in the kernel's words. */
  get error(): string | null {
    return this._error;
  }

  get comparison(): Comparison | null {
    return this._comparison;
  }

  /** The curves of the runs that are pinned. */
  get pinned(): readonly ICurveRun[] {
    return [...this._pinned.values()];
  }

  isPinned(runId: string): boolean {
    return this._pinned.has(runId);
  }

  /** Fetch the list of runs. */
  async refresh(): Promise<void> {
    await this._try(async () => {
      const reply = await this._ask('list_runs', {});
      this._runs = reply.runs;
      // What of the record cannot be shown; the rest of it can.
      this._error = reply.message === '' ? null : reply.message;
    });
  }

  /**
   * Draw the curves of a run beside the others, or no longer; of at most
   * `limit` points each. `together`: they are asked for in one question, and
   * none is drawn before all are there.
   */
  async pin(
    run: PastRun,
    pinned: boolean,
    limit?: number,
    together = false
  ): Promise<void> {
    if (!pinned) {
      this._wanted.delete(run.run_id);
      this._pinned.delete(run.run_id);
      this._changed.emit();
      return;
    }
    const { run_id, name, metrics } = run;
    this._wanted.add(run_id);
    const series = new Map<string, Series>();
    // Of long curves one after the other: each is drawn when it is there.
    const isLong = run.steps > LONG && metrics.length > 0 && !together;
    const curves = isLong ? metrics.map(metric => metric.name) : [null];
    await this._try(async () => {
      for (const curve of curves) {
        const { points } = await this._ask('get_curves', {
          run_id,
          ...(curve === null ? {} : { curve }),
          ...(limit === undefined ? {} : { limit })
        });
        if (!this._wanted.has(run_id)) {
          return; // no longer
        }
        for (const one of points) {
          const added = new Series(one.name);
          added.add(one);
          series.set(one.name, added);
        }
        this._pinned.set(run_id, {
          runId: run_id,
          name,
          series,
          positions: new XPositions(run.started, series)
        });
        this._changed.emit();
      }
    });
  }

  rename(run: PastRun, name: string): Promise<void> {
    return this._change('rename_run', run, name);
  }

  /** Give a run the tags that `text` has, with commas between them. */
  tag(run: PastRun, text: string): Promise<void> {
    return this._change('tag_run', run, text);
  }

  async delete(run: PastRun): Promise<void> {
    await this._change('delete_run', run);
    if (this._error === null) {
      this._pinned.delete(run.run_id);
      this._changed.emit();
    }
  }

  /** Find out what changed from one run to another. */
  async compare(before: PastRun, after: PastRun): Promise<void> {
    await this._try(async () => {
      const reply = await this._ask('compare_runs', {
        run_id: before.run_id,
        other_run_id: after.run_id
      });
      this._comparison = reply.comparison;
    });
  }

  /** The cell that made a run; `null`: `error` says why it is not known. */
  async cellOf(run: PastRun): Promise<RunCell | null> {
    let cell: RunCell | null = null;
    await this._try(async () => {
      cell = (await this._ask('find_cell', { run_id: run.run_id })).cell;
    });
    return cell;
  }

  /** What a rank of a run has printed; an `Error` says why it is not known. */
  async outputOf(run: PastRun, rank: number): Promise<RunOutput | null> {
    const { output } = await this._ask('get_output', {
      run_id: run.run_id,
      rank
    });
    return output;
  }

  /** All of a run as the text of an HTML file; `null`: `error` says why not. */
  async share(run: PastRun): Promise<string | null> {
    let page: string | null = null;
    await this._try(async () => {
      page = (await this._ask('share_run', { run_id: run.run_id })).page;
    });
    return page;
  }

  forgetComparison(): void {
    this._comparison = null;
    this._changed.emit();
  }

  private async _change(
    name: CommandName,
    run: PastRun,
    text?: string
  ): Promise<void> {
    await this._try(async () => {
      await this._ask(name, { run_id: run.run_id, text: text ?? null });
      this._runs = (await this._ask('list_runs', {})).runs;
      const renamed = this._pinned.get(run.run_id);
      if (renamed !== undefined && name === 'rename_run') {
        this._pinned.set(run.run_id, { ...renamed, name: text ?? '' });
      }
    });
  }

  private async _try(action: () => Promise<void>): Promise<void> {
    this._error = null;
    try {
      await action();
    } catch (error) {
      this._error = error instanceof Error ? error.message : String(error);
    }
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _pinned = new Map<string, ICurveRun>();
  private readonly _wanted = new Set<string>();
  private _runs: readonly PastRun[] | null = null;
  private _error: string | null = null;
  private _comparison: Comparison | null = null;
}
