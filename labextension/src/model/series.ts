/**
 * One curve of a run: columns that only grow, ready for a chart to draw.
 *
 * Points almost always arrive in order and are appended. They are merged by
 * step where they are not (a snapshot that overlaps what was sent before it),
 * so that no order of arrival loses or repeats a point; the newer value wins.
 */

/** Columns of equal length, as they come off the wire. */
export interface IColumns {
  step: readonly number[];
  /** `null`: a step without a value, drawn as a gap. */
  value: readonly (number | null)[];
}

export class Series {
  constructor(readonly name: string) {}

  get steps(): readonly number[] {
    return this._steps;
  }

  get values(): readonly (number | null)[] {
    return this._values;
  }

  get length(): number {
    return this._steps.length;
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
    const { step, value } = columns;
    for (let i = 0; i < step.length; i++) {
      const at = step[i];
      if (at !== undefined) {
        this._put(at, finite(value[i]));
      }
    }
    if (step.length > 0) {
      this._revision += 1;
    }
  }

  private _put(step: number, value: number | null): void {
    const last = this._steps[this._steps.length - 1];
    if (last === undefined || step > last) {
      this._steps.push(step);
      this._values.push(value);
      return;
    }
    const index = this._firstNotBelow(step);
    if (this._steps[index] === step) {
      this._values[index] = value;
    } else {
      this._steps.splice(index, 0, step);
      this._values.splice(index, 0, value);
    }
  }

  /** The index of the first step that is not below `step` (binary search). */
  private _firstNotBelow(step: number): number {
    let low = 0;
    let high = this._steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this._steps[middle] ?? Infinity) < step) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  private readonly _steps: number[] = [];
  private readonly _values: (number | null)[] = [];
  private _revision = 0;
}

/** A value that a chart can draw, or `null`: NaN and infinities are gaps. */
function finite(value: number | null | undefined): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}
