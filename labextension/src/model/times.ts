/** Where the time of a rank goes: over the whole run, and of late. */

import type { ITimeSplit, Nested } from '../protocol';

export type TimeSplit = Nested<ITimeSplit>;

/** The parts of a rank's time, in the order of a step. */
export const PARTS = [
  'data',
  'forward',
  'backward',
  'communication',
  'optimizer',
  'other'
] as const;

export type Part = (typeof PARTS)[number];
export type Parts = Record<Part, number>;

/** What reading large data takes: seconds of all threads, beside the parts. */
export const READING = [
  'files',
  'partitions',
  'decoding',
  'transforms'
] as const;

export type Reading = (typeof READING)[number];
type Recent = Record<Part | Reading, number>;

/** "Of late" is between one and two of these, in seconds of the rank. */
const RECENT_S = 5;

/** A line of the user's code, by its number in its cell; its code may be unknown. */
export interface IBusiestLine {
  line: number;
  code: string;
}

/** The reports of one rank. Each has the sums since the run began. */
export class RankTimes {
  constructor(first: TimeSplit) {
    this._now = this._middle = first;
    this._before = null;
  }

  /** Take a newer report. */
  add(split: TimeSplit): void {
    this._now = split;
    this._recent = null;
    if (total(split) - total(this._middle) > RECENT_S) {
      this._before = this._middle;
      this._middle = split;
    }
  }

  get rank(): number {
    return this._now.rank;
  }

  /** Steps that the rank has finished. */
  get step(): number {
    return this._now.step;
  }

  /** Worker processes of the loader, as far as is known. */
  get numWorkers(): number | null {
    return this._now.num_workers;
  }

  /** Seconds since the run began. */
  get all(): Parts {
    return this._now;
  }

  /** Seconds of the last while; of the whole run while that is short. */
  get recent(): Recent {
    this._recent ??= this._difference();
    return this._recent;
  }

  /** The part of the recent time that each part took. */
  share(part: Part): number {
    const all = total(this.recent);
    return all > 0 ? this.recent[part] / all : 0;
  }

  /**
   * What most of the recent reading was; `null` where it is too little to have
   * been waited for.
   */
  get mostOfReading(): Reading | null {
    const { recent } = this;
    const all = READING.reduce((sum, what) => sum + recent[what], 0);
    const most = READING.reduce((one, other) =>
      recent[other] > recent[one] ? other : one
    );
    return all > 0 && all >= recent.data / 3 ? most : null;
  }

  /** The user's line that takes most of the rest of the cell; `null`: none stands out. */
  get busiest(): IBusiestLine | null {
    const { busiest_line: line, busiest_code: code } = this._now;
    return line > 0 ? { line, code } : null;
  }

  private _difference(): Recent {
    const { _now: now, _before: before } = this;
    if (before === null) {
      return now;
    }
    const parts = [...PARTS, ...READING].map(part => [
      part,
      Math.max(0, now[part] - before[part])
    ]);
    return Object.fromEntries(parts) as Recent;
  }

  private _now: TimeSplit;
  private _middle: TimeSplit;
  private _before: TimeSplit | null;
  private _recent: Recent | null = null;
}

/** All of the time that is split, in seconds. */
export function total(parts: Parts): number {
  return PARTS.reduce((sum, part) => sum + parts[part], 0);
}
