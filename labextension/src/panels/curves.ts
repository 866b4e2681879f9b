/** The curves of the run: a chart for the loss and for each logged name. */

import type { IThemeManager } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { LineChart } from '../charts/lineChart';
import type { Series } from '../model/series';
import type { TrainingModel } from '../model/training';
import { formatCount, formatValue } from './format';

const HEIGHT = 170;

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
      chart = new LineChart({
        series,
        height: HEIGHT,
        describe: (step, value) =>
          this._trans.__('%1 at step %2', formatValue(value), formatCount(step))
      });
      this._charts.set(series, chart);
      this._section.append(chart.node);
    }
    return chart;
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
  private readonly _observer: ResizeObserver;
  private readonly _charts = new Map<Series, LineChart>();
  private _frame = 0;
}
