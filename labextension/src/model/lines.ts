/** The lines of a chart: the curves of one quantity, of one run or several. */

import type { Details } from './details';
import type { IGroup } from './groups';
import type { PlotOptions, Range } from './plotOptions';
import type { Series } from './series';
import { smoothed } from './smoothing';
import { firstNotBelow } from './thinning';
import { EPOCH, type XPositions } from './xAxis';

/** A run whose curves are drawn. */
export interface ICurveRun {
  runId: string;
  name: string;
  series: ReadonlyMap<string, Series>;
  positions: XPositions;
}

/** One line before it has colours. */
export interface ICurveLine {
  key: string;
  /** Which of the runs it belongs to. */
  run: number;
  /** Which member of the group it is. */
  member: number;
  name: string;
  x: readonly number[];
  y: readonly (number | null)[];
  raw: readonly (number | null)[] | null;
  steps: readonly number[];
}

/** The names of all curves that are to be drawn, in order of appearance. */
export function drawnNames(runs: readonly ICurveRun[]): string[] {
  const names = new Set(runs.flatMap(run => [...run.series.keys()]));
  names.delete(EPOCH);
  return [...names];
}

/** Colours for the curves of the first run: training, validation, test. */
const OWN_COLORS = 3;
/** Colours for other runs, one each. */
const OTHER_COLORS = 5;

/** The colour of the curves of the drawn run number `index`. */
export function runColor(index: number): number {
  return index === 0 ? 0 : OWN_COLORS + ((index - 1) % OTHER_COLORS);
}

export class LineBuilder {
  constructor(
    private readonly _options: PlotOptions,
    private readonly _details: Details | null
  ) {}

  /** The lines of a group in all runs that have them. */
  lines(group: IGroup, runs: readonly ICurveRun[]): ICurveLine[] {
    return runs.flatMap((run, number) =>
      group.members.flatMap(({ name }, member) => {
        const series = run.series.get(name);
        if (series === undefined || series.length === 0) {
          return [];
        }
        return [{ run: number, member, name, ...this._line(run, series) }];
      })
    );
  }

  private _line(
    run: ICurveRun,
    series: Series
  ): Pick<ICurveLine, 'key' | 'x' | 'y' | 'raw' | 'steps'> {
    const { xKind, smoothing } = this._options;
    const shown = this._closer(run, series) ?? series;
    return {
      key: `${run.runId}\n${series.name}`,
      x: run.positions.of(shown, xKind),
      y: smoothing > 0 ? this._smoothed(shown, smoothing) : shown.values,
      raw: smoothing > 0 ? shown.values : null,
      steps: shown.steps
    };
  }

  /** What the kernel has besides of the part that is zoomed to, if fetched. */
  private _closer(run: ICurveRun, series: Series): Series | null {
    const { zoom, xKind } = this._options;
    if (zoom === null || !series.thinned || this._details === null) {
      return null;
    }
    const [first, last] = stepsBetween(series, run.positions, xKind, zoom);
    return this._details.get(run.runId, series.name, first, last);
  }

  private _smoothed(series: Series, weight: number): (number | null)[] {
    const known = this._known.get(series);
    if (known?.revision === series.revision && known.weight === weight) {
      return known.values;
    }
    const values = smoothed(series.values, weight);
    this._known.set(series, { revision: series.revision, weight, values });
    return values;
  }

  private readonly _known = new WeakMap<
    Series,
    { revision: number; weight: number; values: (number | null)[] }
  >();
}

/** The steps that are between two places of the x axis, one more each side. */
function stepsBetween(
  series: Series,
  positions: XPositions,
  kind: PlotOptions['xKind'],
  [low, high]: Range
): [number, number] {
  const { steps } = series;
  const x = positions.of(series, kind);
  const first = Math.max(0, firstNotBelow(x, low) - 1);
  const last = Math.min(steps.length - 1, firstNotBelow(x, high) + 1);
  return [steps[first] ?? 0, steps[last] ?? 0];
}

/** From the first to the last x of all lines. */
export function fullRange(
  lines: readonly Pick<ICurveLine, 'x'>[]
): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (const { x } of lines) {
    low = Math.min(low, x[0] ?? Infinity);
    high = Math.max(high, x[x.length - 1] ?? -Infinity);
  }
  return low > high ? [0, 1] : [low, high];
}
