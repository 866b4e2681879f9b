/**
 * What the kernel has of a curve between the points that are here, fetched for
 * the part of it that is looked at.
 */

import { Signal, type ISignal } from '@lumino/signaling';
import type { ICommand, IReply } from '../protocol';
import { Series } from './series';

/** Asks the kernel about past runs, or the present one. */
export type Ask = (
  name: ICommand['name'],
  options: Partial<ICommand>
) => Promise<IReply>;

/** Fetch when the view has stood still this long: zooming asks many times. */
const STILL_MS = 150;
/** Points of one curve in one answer. */
const LIMIT = 4000;
/** Answers with more points than this are asked for in two halves. */
const PAGE = 50_000;

interface IPart {
  first: number;
  last: number;
  /** `null` until the answer is there. */
  series: Series | null;
}

export class Details {
  constructor(private readonly _ask: Ask) {}

  /** Emitted when something has been fetched. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /**
   * A curve from step `first` to step `last` with more of its points; `null`
   * while it is being fetched.
   */
  get(runId: string, name: string, first: number, last: number): Series | null {
    const key = `${runId}\n${name}`;
    const part = this._parts.get(key);
    if (part?.first === first && part.last === last) {
      return part.series;
    }
    const wanted: IPart = { first, last, series: null };
    this._parts.set(key, wanted);
    setTimeout(() => {
      if (this._parts.get(key) === wanted) {
        void this._fetch(runId, name, wanted);
      }
    }, STILL_MS);
    return null;
  }

  /** All points of a curve, in as many answers as it takes. */
  async all(runId: string, name: string): Promise<Series> {
    const whole = new Series(name, Infinity);
    const [outline] = (await this._get(runId, name, {})).points;
    const { step } = outline ?? { step: [] };
    const ranges = [[step[0] ?? 0, step[step.length - 1] ?? 0] as const];
    for (let range = ranges.pop(); range; range = ranges.pop()) {
      const [first, last] = range;
      const options = { first, last, limit: PAGE };
      const [points] = (await this._get(runId, name, options)).points;
      if (points?.thinned === true && last > first) {
        const middle = Math.floor((first + last) / 2);
        ranges.push([middle + 1, last], [first, middle]);
      } else if (points !== undefined) {
        whole.add(points);
      }
    }
    return whole;
  }

  private async _fetch(
    runId: string,
    name: string,
    part: IPart
  ): Promise<void> {
    const { first, last } = part;
    try {
      const reply = await this._get(runId, name, { first, last, limit: LIMIT });
      const series = new Series(name);
      for (const points of reply.points) {
        series.add(points);
      }
      part.series = series;
      this._changed.emit();
    } catch {
      // The outline that is here stays: it is right, if coarse.
    }
  }

  private _get(
    run_id: string,
    curve: string,
    options: Partial<ICommand>
  ): Promise<IReply> {
    return this._ask('get_curves', { run_id, curve, ...options });
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _parts = new Map<string, IPart>();
}
