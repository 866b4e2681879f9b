/**
 * One curve of a run: columns that only grow, ready for a chart to draw.
 *
 * Points almost always arrive in order and are appended. They are merged by
 * step where they are not (a snapshot that overlaps what was sent before it),
 * so that no order of arrival loses or repeats a point; the newer value wins.
 *
 * A long curve is thinned like the kernel's own copy of it: the browser holds
 * the picture, the kernel has every point.
 */

import { extremes, firstNotBelow } from './thinning';

/** Columns of equal length, as they come off the wire. */
export interface IColumns {
  step: readonly number[];
  /** Seconds since the epoch. */
  time: readonly number[];
  /** `null`: a step without a value, drawn as a gap. */
  value: readonly (number | null)[];
  /** Whether points in between were left out. */
  thinned?: boolean;
}

/** As many as the kernel gives of one curve. */
const MAX_POINTS = 10_000;

export class Series {
  constructor(
    readonly name: string,
    /** Of a curve that has grown to twice as many points, so many are kept. */
    private readonly _maxPoints = MAX_POINTS
  ) {}

  get steps(): readonly number[] {
    return this._steps;
  }

  get times(): readonly number[] {
    return this._times;
  }

  get values(): readonly (number | null)[] {
    return this._values;
  }

  get length(): number {
    return this._steps.length;
  }

  /** Whether the kernel has more points than are here. */
  get thinned(): boolean {
    return this._thinned;
  }

  /** Grows with every change: a chart compares it to know whether to redraw. */
  get revision(): number {
    return this._revision;
  }

  /** The newest value that is a number. */
  get last(): number | null {
    for (let i = this._values.length - 1; i >= 0; i--) {
      const value = this._values[i];
      if (value !== null && value !== undefined) {
        return value;
      }
    }
    return null;
  }

  /** Add points, in any order and overlapping with what is there or not. */
  add(columns: IColumns): void {
    const { step, time, value } = columns;
    for (let i = 0; i < step.length; i++) {
      const at = step[i];
      if (at !== undefined) {
        this._put(at, time[i] ?? NaN, finite(value[i]));
      }
    }
    this._thinned ||= columns.thinned === true;
    if (this._steps.length > 2 * this._maxPoints) {
      this._thin();
    }
    if (step.length > 0) {
      this._revision += 1;
    }
  }

  /** Take away the points after `step`. */
  cut(step: number): void {
    const kept = firstNotBelow(this._steps, step + 1);
    if (kept < this._steps.length) {
      // In new columns: a chart may hold the old ones.
      this._steps = this._steps.slice(0, kept);
      this._times = this._times.slice(0, kept);
      this._values = this._values.slice(0, kept);
      this._revision += 1;
    }
  }

  private _put(step: number, time: number, value: number | null): void {
    const last = this._steps[this._steps.length - 1];
    if (last === undefined || step > last) {
      this._steps.push(step);
      this._times.push(time);
      this._values.push(value);
      return;
    }
    const index = firstNotBelow(this._steps, step);
    if (this._steps[index] === step) {
      this._times[index] = time;
      this._values[index] = value;
    } else {
      this._steps.splice(index, 0, step);
      this._times.splice(index, 0, time);
      this._values.splice(index, 0, value);
    }
  }

  private _thin(): void {
    const { _steps: steps, _times: times, _values: values } = this;
    const stretches = this._maxPoints / 2;
    const kept = extremes(steps, values, 0, steps.length, stretches);
    this._steps = kept.map(index => steps[index] ?? 0);
    this._times = kept.map(index => times[index] ?? NaN);
    this._values = kept.map(index => values[index] ?? null);
    this._thinned = true;
  }

  private _steps: number[] = [];
  private _times: number[] = [];
  private _values: (number | null)[] = [];
  private _thinned = false;
  private _revision = 0;
}

/** A value that a chart can draw, or `null`: NaN and infinities are gaps. */
function finite(value: number | null | undefined): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}
