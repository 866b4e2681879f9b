/**
 * One curve over steps, drawn by uPlot on a canvas.
 *
 * uPlot because it draws a hundred thousand points in a few milliseconds and
 * weighs 50 kB. What it shows on hover is text beside the chart's name, so that
 * the chart keeps its place and narrow sidebars lose no width to a legend.
 */

import uPlot from 'uplot';
import type { Series } from '../model/series';
import { readTheme, type IChartTheme } from './theme';

export interface ILineChartOptions {
  series: Series;
  /** The name of the curve as the user reads it. */
  label: string;
  /** Height of the canvas in CSS pixels. */
  height: number;
  /** The text for a value: `0.3128`. */
  format: (value: number) => string;
  /** The text for a point: `0.3128 at step 120`. */
  describe: (step: number, value: number) => string;
}

export class LineChart {
  constructor(private readonly _options: ILineChartOptions) {
    const { series, label } = _options;
    this.node = document.createElement('figure');
    this.node.className = 'jp-dtrain-chart';
    this.node.dataset.testid = 'jp-dtrain-chart';
    this.node.dataset.series = series.name;
    const caption = document.createElement('figcaption');
    const name = document.createElement('span');
    name.className = 'jp-dtrain-chart-name';
    name.textContent = label;
    this._value = document.createElement('span');
    this._value.className = 'jp-dtrain-chart-value';
    caption.append(name, this._value);
    this._canvas = document.createElement('div');
    this._canvas.setAttribute('role', 'img');
    this.node.append(caption, this._canvas);
  }

  readonly node: HTMLElement;

  /** Draw what has changed since the last call, at the width that there is. */
  draw(): void {
    const width = Math.floor(this._canvas.clientWidth);
    if (width === 0) {
      return;
    }
    const { series, height } = this._options;
    if (this._plot === null) {
      this._theme = readTheme(this.node);
      this._plot = new uPlot(
        this._plotOptions(width),
        this._data(),
        this._canvas
      );
    } else {
      if (width !== this._plot.width) {
        this._plot.setSize({ width, height });
      }
      if (series.revision !== this._drawn) {
        this._plot.setData(this._data());
      }
    }
    this._drawn = series.revision;
    this._describe();
  }

  /** Draw everything again in the colours of another theme. */
  restyle(): void {
    this._theme = readTheme(this.node);
    this._plot?.redraw(false, true);
  }

  dispose(): void {
    this._plot?.destroy();
    this._plot = null;
    this.node.remove();
  }

  private _data(): uPlot.AlignedData {
    const { steps, values } = this._options.series;
    // uPlot takes plain arrays and does not change them.
    return [steps as number[], values as (number | null)[]];
  }

  private _plotOptions(width: number): uPlot.Options {
    const valueLabels = (_: uPlot, splits: number[]): string[] =>
      splits.map(this._options.format);
    const axis: uPlot.Axis = {
      stroke: () => this._theme?.text ?? '',
      font: this._theme?.font,
      grid: { stroke: () => this._theme?.grid ?? '', width: 1 },
      ticks: { stroke: () => this._theme?.grid ?? '', width: 1, size: 4 },
      gap: 2
    };
    return {
      width,
      height: this._options.height,
      padding: [8, 12, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: false, range: wholeSteps } },
      axes: [
        { ...axis, size: 24, space: 44, incrs: [...STEP_INCREMENTS] },
        { ...axis, size: labelWidth, space: 24, values: valueLabels }
      ],
      series: [
        {},
        {
          stroke: () => this._theme?.line ?? '',
          width: 1.5,
          points: { show: (_, __, first, last) => last - first < 2 }
        }
      ],
      hooks: {
        setCursor: [
          () => {
            this._describe();
          }
        ]
      }
    };
  }

  /** Say the value under the pointer, or else the newest one. */
  private _describe(): void {
    const { series, label, describe } = this._options;
    const index = this._plot?.cursor.idx ?? series.length - 1;
    const step = series.steps[index];
    const value = series.values[index];
    const text =
      step === undefined || value === undefined || value === null
        ? ''
        : describe(step, value);
    this._value.textContent = text;
    this.node.dataset.points = String(series.length);
    this._canvas.setAttribute('aria-label', `${label} ${text}`.trim());
  }

  private readonly _canvas: HTMLElement;
  private readonly _value: HTMLElement;
  private _plot: uPlot | null = null;
  private _theme: IChartTheme | null = null;
  private _drawn = -1;
}

/** Steps are whole numbers: no tick in between. */
const STEP_INCREMENTS: readonly number[] = Array.from({ length: 10 }, (_, i) =>
  [1, 2, 5].map(factor => factor * 10 ** i)
).flat();

/** As wide as the longest label, so that no curve loses width to blanks. */
function labelWidth(_: uPlot, labels: string[] | null): number {
  const longest = Math.max(1, ...(labels ?? []).map(label => label.length));
  return 10 + 6.5 * longest;
}

/** A single point still gets an axis with a width. */
function wholeSteps(
  _: uPlot,
  min: number | null,
  max: number | null
): uPlot.Range.MinMax {
  const low = min ?? 0;
  return [low, Math.max(max ?? 1, low + 1)];
}
