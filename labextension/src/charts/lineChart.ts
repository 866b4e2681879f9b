/**
 * Curves over one x axis, drawn by uPlot on a canvas.
 *
 * uPlot because it draws a hundred thousand points in a few milliseconds and
 * weighs 50 kB. What it shows on hover is text beside the chart's name, so that
 * the chart keeps its place and narrow sidebars lose no width to a legend.
 */

import uPlot from 'uplot';
import { nearest } from '../model/thinning';
import { aligned, type ILine } from './data';
import { onKey, onSelect, onWheel, type IPointerHandlers } from './pointer';
import { pointerOptions } from './pointer';
import { lineColor, readTheme, type IChartTheme } from './theme';

export interface ILineChartOptions extends IPointerHandlers {
  /** What tests know the chart by. */
  name: string;
  /** The name of the chart as the user reads it. */
  label: string;
  /** Height of the canvas in CSS pixels. */
  height: number;
  /** How to use it, for its tooltip. */
  hint: string;
  /** The text for a value: `0.3128`; `null`: it was not finite. */
  format: (value: number | null) => string;
}

/** What is to be seen now. */
export interface IFrame {
  lines: readonly ILine[];
  /** The part of the x axis. */
  range: readonly [number, number];
  logScale: boolean;
  /** Where the pointer is, in this chart or another. */
  hover: number | null;
  /** Whether only whole numbers are on the x axis. */
  whole: boolean;
  formatX: (x: number) => string;
  /** The text for a place on the x axis: `step 120`. */
  describeX: (x: number) => string;
}

export class LineChart {
  constructor(private readonly _options: ILineChartOptions) {
    const { name, label, hint } = _options;
    this.node = document.createElement('figure');
    this.node.className = 'jp-dtrain-chart';
    this.node.dataset.testid = 'jp-dtrain-chart';
    this.node.dataset.series = name;
    const caption = document.createElement('figcaption');
    const title = document.createElement('span');
    title.className = 'jp-dtrain-chart-name';
    title.textContent = title.title = label;
    this._value = document.createElement('span');
    this._value.className = 'jp-dtrain-chart-value';
    this.actions = document.createElement('span');
    this.actions.className = 'jp-dtrain-chart-actions';
    caption.append(title, this._value, this.actions);
    this._legend = document.createElement('ul');
    this._legend.className = 'jp-dtrain-legend';
    this._canvas = document.createElement('div');
    this._canvas.setAttribute('role', 'img');
    this._canvas.tabIndex = 0;
    this._canvas.title = hint;
    this._canvas.addEventListener('keydown', event => {
      onKey(event, _options);
    });
    this._canvas.addEventListener(
      'wheel',
      event => {
        if (this._plot !== null) {
          onWheel(this._plot, event, _options);
        }
      },
      { passive: false }
    );
    this.node.append(caption, this._legend, this._canvas);
  }

  readonly node: HTMLElement;
  /** A place for buttons that act on the chart. */
  readonly actions: HTMLElement;

  /** The name of the chart as the user reads it. */
  get label(): string {
    return this._options.label;
  }

  /** The lines that were drawn last. */
  get lines(): readonly ILine[] {
    return this._frame?.lines ?? [];
  }

  /** Draw a frame at the width that there is. */
  draw(frame: IFrame): void {
    this._frame = frame;
    const width = Math.floor(this._canvas.clientWidth);
    if (width === 0) {
      return;
    }
    const { height } = this._options;
    const shape = JSON.stringify([
      frame.logScale,
      frame.whole,
      frame.lines.map(({ key, color, raw }) => [key, color, raw !== null])
    ]);
    const data = aligned(frame.lines, frame.range, width, frame.logScale);
    if (this._plot === null || shape !== this._shape) {
      this._shape = shape;
      this._plot?.destroy();
      this._theme = readTheme(this.node);
      this._plot = new uPlot(this._plotOptions(width), data, this._canvas);
    } else {
      if (width !== this._plot.width) {
        this._plot.setSize({ width, height });
      }
      this._plot.setData(data);
    }
    // When uPlot has placed its axes, which it does in a microtask of its own.
    queueMicrotask(() => {
      this._followPointer();
    });
  }

  /** Say the values of a frame that is not drawn, for nobody sees it. */
  tell(frame: IFrame): void {
    this._frame = frame;
    this._describe(frame.hover);
  }

  /** Show the values at `x`, or else the newest. */
  hover(x: number | null): void {
    if (this._plot === null || this._frame === null) {
      return;
    }
    this._frame = { ...this._frame, hover: x };
    if (x !== null || (this._plot.cursor.left ?? -10) >= 0) {
      const left = x === null ? -10 : this._plot.valToPos(x, 'x');
      this._plot.setCursor({ left, top: x === null ? -10 : 0 }, false);
    }
    this._describe(x);
  }

  /** Draw everything again in the colours of another theme. */
  restyle(): void {
    this._theme = readTheme(this.node);
    this._plot?.redraw(false, true);
  }

  /** The chart's pixels, and the theme that they are drawn in. */
  get picture(): { canvas: HTMLCanvasElement; theme: IChartTheme } | null {
    return this._plot === null || this._theme === null
      ? null
      : { canvas: this._plot.ctx.canvas, theme: this._theme };
  }

  dispose(): void {
    this._plot?.destroy();
    this._plot = null;
    this.node.remove();
  }

  /** The axis may have moved under a pointer that rests. */
  private _followPointer(): void {
    if (this._plot === null || this._frame === null) {
      return;
    }
    if (this._pointer !== null) {
      this._options.onHover(this._plot.posToVal(this._pointer, 'x'));
    }
    this.hover(this._frame.hover);
  }

  private _plotOptions(width: number): uPlot.Options {
    const { _options: options } = this;
    const { lines, logScale, whole } = this._frame ?? { lines: [] };
    const axis: uPlot.Axis = {
      stroke: () => this._theme?.text ?? '',
      font: this._theme?.font,
      grid: { stroke: () => this._theme?.grid ?? '', width: 1 },
      ticks: { stroke: () => this._theme?.grid ?? '', width: 1, size: 4 },
      gap: 2
    };
    const incrs = whole === true ? { incrs: [...WHOLE_INCREMENTS] } : {};
    return {
      width,
      height: options.height,
      padding: [8, LABEL_EDGE, 0, 0],
      legend: { show: false },
      cursor: pointerOptions(left => {
        this._pointer = left;
        options.onHover(
          left === null ? null : (this._plot?.posToVal(left, 'x') ?? null)
        );
      }, options),
      scales: {
        x: { time: false, range: () => [...(this._frame?.range ?? [0, 1])] },
        y: logScale === true ? LOGARITHMIC : {}
      },
      axes: [
        {
          ...axis,
          ...incrs,
          size: 24,
          space: 44,
          values: (_, splits) =>
            splits.map(x => this._frame?.formatX(x) ?? String(x))
        },
        {
          ...axis,
          size: labelWidth,
          space: 24,
          values: (_, splits) =>
            splits.map(y => (Number.isFinite(y) ? options.format(y) : ''))
        }
      ],
      series: [{}, ...lines.flatMap(line => this._seriesOf(line))],
      hooks: {
        setSelect: [
          plot => {
            onSelect(plot, options);
          }
        ]
      }
    };
  }

  private _seriesOf(line: ILine): uPlot.Series[] {
    const stroke = (): string => this._theme?.lines[line.color] ?? '';
    const style: uPlot.Series = {
      stroke,
      width: (this._frame?.lines.length ?? 0) > MANY ? THIN : WIDTH,
      dash: line.dashed ? [6, 3] : undefined,
      spanGaps: false,
      points: { show: hasFew, size: 4, fill: stroke }
    };
    return line.raw === null
      ? [style]
      : [{ ...style, alpha: 0.3, width: 1, points: { show: false } }, style];
  }

  /** Say the values under the pointer, or else the newest ones. */
  private _describe(x: number | null): void {
    const { lines, describeX } = this._frame ?? { lines: [] };
    const { label, format } = this._options;
    const readings = lines.map(line => {
      const index = x === null ? line.x.length - 1 : nearest(line.x, x);
      const value = line.y[index] ?? null;
      return { line, at: line.x[index], value };
    });
    const [first] = readings;
    const place =
      first?.at === undefined ? '' : (describeX?.(x ?? first.at) ?? '');
    this._value.textContent =
      readings.length > 1 || first?.at === undefined
        ? place
        : `${format(first.value)} · ${place}`;
    this._drawLegend(readings.length > 1 ? readings : []);
    const told = readings.map(
      ({ line, value }) => `${line.label} ${format(value)}`
    );
    this._canvas.setAttribute(
      'aria-label',
      `${label}: ${told.join(', ')}, ${place}`
    );
  }

  private _drawLegend(readings: { line: ILine; value: number | null }[]): void {
    const shown = JSON.stringify(
      readings.map(({ line, value }) => [line.label, line.color, value])
    );
    if (shown === this._legendShown) {
      return;
    }
    this._legendShown = shown;
    this._legend.replaceChildren(
      ...readings.map(({ line, value }) => {
        const item = document.createElement('li');
        item.title = line.label;
        const swatch = document.createElement('span');
        swatch.className = 'jp-dtrain-swatch';
        swatch.style.borderTopColor = lineColor(line.color);
        swatch.style.borderTopStyle = line.dashed ? 'dashed' : 'solid';
        const name = document.createElement('span');
        name.className = 'jp-dtrain-legend-name';
        name.textContent = line.label;
        const number = document.createElement('span');
        number.className = 'jp-dtrain-legend-value';
        number.textContent = this._options.format(value);
        item.append(swatch, name, number);
        return item;
      })
    );
  }

  private readonly _canvas: HTMLElement;
  private readonly _value: HTMLElement;
  private readonly _legend: HTMLElement;
  private _plot: uPlot | null = null;
  private _frame: IFrame | null = null;
  private _theme: IChartTheme | null = null;
  /** Where the pointer is, in pixels from the left of the plot; `null`: not in it. */
  private _pointer: number | null = null;
  private _shape = '';
  private _legendShown = '[]';
}

/** Half of a label of the x axis, which may stand at its end. */
const LABEL_EDGE = 20;

/** Logarithmic, without blanks up to the next power of ten. */
const LOGARITHMIC: uPlot.Scale = {
  distr: uPlot.Scale.Distr.Logarithmic,
  log: 10,
  range: (_, min: number | null, max: number | null) => [
    (min ?? 0.1) / 1.1,
    (max ?? 1) * 1.1
  ]
};

const WIDTH = 1.5;
/** More lines are a pixel wide: fifty noisy ones took a third of a second without a GPU, which draws these many times as fast. */
const MANY = 8;
const THIN = 1;

/** So few points are drawn as dots too: those of a curve over epochs, say. */
const FEW = 15;

function hasFew(plot: uPlot, series: number): boolean {
  let count = 0;
  for (const value of plot.data[series] ?? []) {
    count += typeof value === 'number' ? 1 : 0;
    if (count > FEW) {
      return false;
    }
  }
  return true;
}

/** Steps are whole numbers: no tick in between. */
const WHOLE_INCREMENTS: readonly number[] = Array.from({ length: 10 }, (_, i) =>
  [1, 2, 5].map(factor => factor * 10 ** i)
).flat();

/** As wide as the longest label, so that no curve loses width to blanks. */
function labelWidth(_: uPlot, labels: string[] | null): number {
  const longest = Math.max(1, ...(labels ?? []).map(label => label.length));
  return 10 + 6.5 * longest;
}
