/** What the points of a curve are drawn over: steps, epochs or time. */

import type { Series } from './series';
import { firstNotBelow } from './thinning';

/** `time` is in seconds since the run's start. */
export type XKind = 'step' | 'epoch' | 'time';

export const X_KINDS: readonly XKind[] = ['step', 'epoch', 'time'];

/** The curve that says which step belongs to which epoch. */
export const EPOCH = 'epoch';

/** Places the points of one run's curves on an x axis. */
export class XPositions {
  constructor(
    /** When the run started, in seconds since the epoch. */
    private readonly _started: number,
    /** The run's curves, that of epochs among them if it has one. */
    private readonly _curves: ReadonlyMap<string, Series>
  ) {}

  /** Whether it is known which step belongs to which epoch. */
  get hasEpochs(): boolean {
    return (this._curves.get(EPOCH)?.length ?? 0) > 1;
  }

  /** The x of each point of `series`, ascending. */
  of(series: Series, kind: XKind): readonly number[] {
    if (kind === 'step') {
      return series.steps;
    }
    const epochs = this._curves.get(EPOCH)?.revision ?? 0;
    const revision = `${kind} ${series.revision} ${epochs}`;
    const known = this._known.get(series);
    if (known?.revision === revision) {
      return known.x;
    }
    const x = kind === 'time' ? this._times(series) : this._epochsOf(series);
    this._known.set(series, { revision, x });
    return x;
  }

  private _times(series: Series): number[] {
    // Clocks of several hosts may go back a little.
    let last = 0;
    return series.times.map(time => {
      last = Math.max(last, time - this._started);
      return last;
    });
  }

  private _epochsOf(series: Series): number[] {
    const { steps, values } = this._curves.get(EPOCH) ?? NONE;
    return series.steps.map(step => interpolate(steps, values, step));
  }

  private readonly _known = new WeakMap<
    Series,
    { revision: string; x: readonly number[] }
  >();
}

const NONE: Pick<Series, 'steps' | 'values'> = { steps: [], values: [] };

/**
 * The epoch of `step` on the line through the points. It begins at nothing,
 * and goes on after the last point as it went until there.
 */
function interpolate(
  steps: readonly number[],
  values: readonly (number | null)[],
  step: number
): number {
  const above = firstNotBelow(steps, step);
  const from = steps[above - 1] ?? 0;
  const left = values[above - 1] ?? 0;
  const to = steps[above];
  if (to === undefined) {
    return from > 0 ? (left * step) / from : left;
  }
  const right = values[above] ?? left;
  return to > from
    ? left + ((right - left) * (step - from)) / (to - from)
    : right;
}
