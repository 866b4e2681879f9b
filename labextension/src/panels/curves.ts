/**
 * The curves of the run: a chart for the loss and for each name that the cell
 * logs; what the engines report on their own besides is there to be unfolded.
 */

import type { IThemeManager } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { LineChart } from '../charts/lineChart';
import type { Series } from '../model/series';
import type { TrainingModel } from '../model/training';
import { formatCount, formatValue } from './format';

const HEIGHT = 170;
const SMALL_HEIGHT = 110;
/** Curves that every run has and that are seldom looked at. */
const FOLDED = ['learning_rate', 'samples_per_second'];

export class CurvesView extends Widget {
  constructor(
    private readonly _model: TrainingModel,
    private readonly _trans: TranslationBundle,
    private readonly _themes: IThemeManager | null
  ) {
    super();
    this.id = 'jp-dtrain-curves';
    const section = document.createElement('section');
    section.className = 'jp-dtrain-section';
    section.dataset.testid = 'jp-dtrain-curves';
    section.setAttribute('aria-labelledby', 'jp-dtrain-curves-title');
    const header = document.createElement('header');
    const title = document.createElement('h2');
    title.id = 'jp-dtrain-curves-title';
    title.textContent = _trans.__('Curves');
    header.append(title);
    section.append(header);
    this._section = section;
    this._folded = document.createElement('details');
    this._folded.className = 'jp-dtrain-folded';
    this._folded.dataset.testid = 'jp-dtrain-more-curves';
    const summary = document.createElement('summary');
    summary.textContent = _trans.__('Learning rate and speed');
    this._folded.append(summary);
    this._folded.addEventListener('toggle', () => {
      this._schedule();
    });
    this._observer = new ResizeObserver(() => {
      this._schedule();
    });
    _model.changed.connect(this._schedule, this);
    _themes?.themeChanged.connect(this._onTheme, this);
  }

  override dispose(): void {
    cancelAnimationFrame(this._frame);
    this._observer.disconnect();
    this._themes?.themeChanged.disconnect(this._onTheme, this);
    this._clear();
    super.dispose();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._observer.observe(this.node);
    this._schedule();
  }

  protected override onBeforeDetach(message: Message): void {
    this._observer.disconnect();
    super.onBeforeDetach(message);
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._schedule();
  }

  /** Draw in the next frame, if this is visible then. */
  private _schedule(): void {
    if (this._frame === 0 && this.isVisible) {
      this._frame = requestAnimationFrame(() => {
        this._frame = 0;
        if (this.isVisible) {
          this._draw();
        }
      });
    }
  }

  private _draw(): void {
    const series = this._model.current?.connection.state.series;
    const shown = [...(series?.values() ?? [])];
    const known = new Set(shown);
    for (const [one, chart] of this._charts) {
      if (!known.has(one)) {
        chart.dispose();
        this._charts.delete(one);
      }
    }
    if (!shown.some(one => FOLDED.includes(one.name))) {
      this._folded.remove();
    }
    if (shown.length === 0) {
      this._section.remove();
      return;
    }
    this.node.append(this._section);
    for (const one of shown) {
      this._chart(one).draw();
    }
  }

  private _chart(series: Series): LineChart {
    let chart = this._charts.get(series);
    if (chart === undefined) {
      const folded = FOLDED.includes(series.name);
      chart = new LineChart({
        series,
        label: this._label(series.name),
        height: folded ? SMALL_HEIGHT : HEIGHT,
        format: formatValue,
        describe: (step, value) =>
          this._trans.__('%1 at step %2', formatValue(value), formatCount(step))
      });
      this._charts.set(series, chart);
      (folded ? this._folded : this._section).append(chart.node);
      if (folded || this._folded.isConnected) {
        // Last, whatever appeared before it.
        this._section.append(this._folded);
      }
    }
    return chart;
  }

  private _label(name: string): string {
    switch (name) {
      case 'loss':
        return this._trans.__('Loss');
      case 'learning_rate':
        return this._trans.__('Learning rate');
      case 'samples_per_second':
        return this._trans.__('Samples/s');
      default:
        return name;
    }
  }

  private _onTheme(): void {
    for (const chart of this._charts.values()) {
      chart.restyle();
    }
  }

  private _clear(): void {
    for (const chart of this._charts.values()) {
      chart.dispose();
    }
    this._charts.clear();
  }

  private readonly _section: HTMLElement;
  private readonly _folded: HTMLDetailsElement;
  private readonly _observer: ResizeObserver;
  private readonly _charts = new Map<Series, LineChart>();
  private _frame = 0;
}
