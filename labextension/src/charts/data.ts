/** From curves to what uPlot draws: as many points as there are pixels. */

import uPlot from 'uplot';
import { extremes, firstNotBelow } from '../model/thinning';

/** A line of a chart: columns of equal length. */
export interface ILine {
  /** Tells lines apart, whatever they are called. */
  key: string;
  label: string;
  /** Index into the theme's colours. */
  color: number;
  /** For what was measured after training. */
  dashed: boolean;
  /** Ascending. */
  x: readonly number[];
  y: readonly (number | null)[];
  /** What is drawn faintly behind a smoothed line. */
  raw: readonly (number | null)[] | null;
  /** The step of each point, to be told with it. */
  steps: readonly number[];
}

/**
 * Stretches of the x axis of all lines together. One has a stretch for each
 * pixel; many lines have wider ones, which their number hides.
 */
const STRETCHES = 12_000;

/**
 * The columns of all `lines` between `low` and `high`, on one x: for each line
 * the smoothed and, where there is one, the raw one before it.
 */
export function aligned(
  lines: readonly ILine[],
  [low, high]: readonly [number, number],
  width: number,
  positiveOnly: boolean
): uPlot.AlignedData {
  const tables: uPlot.AlignedData[] = [];
  const stretches = Math.min(
    width,
    Math.ceil(STRETCHES / Math.max(1, lines.length))
  );
  for (const line of lines) {
    // One point more on either side, so that lines run to the edge.
    const start = Math.max(0, firstNotBelow(line.x, low) - 1);
    const after = firstNotBelow(line.x, high) + 1;
    const end = Math.min(line.x.length, after + 1);
    for (const y of line.raw === null ? [line.y] : [line.raw, line.y]) {
      const kept = extremes(line.x, y, start, end, stretches);
      tables.push([
        kept.map(index => line.x[index] ?? 0),
        kept.map(index => {
          const value = y[index] ?? null;
          return positiveOnly && value !== null && value <= 0 ? null : value;
        })
      ]);
    }
  }
  return tables.length === 0 ? [[]] : uPlot.join(tables.map(unique));
}

/** Two points at one x (a value logged twice) cannot be joined: the last. */
function unique(table: uPlot.AlignedData): uPlot.AlignedData {
  const [x, y] = table as [number[], (number | null)[]];
  const last = (index: number): boolean => x[index] !== x[index + 1];
  return x.every((_, index) => last(index))
    ? table
    : [x.filter((_, i) => last(i)), y.filter((_, i) => last(i))];
}
