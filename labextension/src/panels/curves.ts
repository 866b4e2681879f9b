/**
 * The curves of the run: a chart for the loss and for each quantity that the
 * cell logs, with those of pinned runs in them; what the engines report on
 * their own besides is there to be unfolded.
 */

import type { IThemeManager } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import type { ILine } from '../charts/data';
import { LineChart, type IFrame } from '../charts/lineChart';
import { groupCurves, type IGroup } from '../model/groups';
import {
  LineBuilder,
  drawnNames,
  fullRange,
  runColor,
  type ICurveLine,
  type ICurveRun
} from '../model/lines';
import type { PlotOptions } from '../model/plotOptions';
import type { ITraining, TrainingModel } from '../model/training';
import { CurveTools } from './curveTools';
import { exportButtons } from './curveExport';
import { formatCount, formatDuration, formatTick, formatValue } from './format';

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
    this._options = _model.plot;
    this._builder = new LineBuilder(this._options, null);
    this._section = document.createElement('section');
    this._section.className = 'jp-dtrain-section';
    this._section.dataset.testid = 'jp-dtrain-curves';
    this._section.setAttribute('aria-labelledby', 'jp-dtrain-curves-title');
    const header = document.createElement('header');
    const title = document.createElement('h2');
    title.id = 'jp-dtrain-curves-title';
    title.textContent = _trans.__('Curves');
    header.append(title);
    this._tools = new CurveTools(this._options, _trans);
    this._section.append(header, this._tools.node);
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
    this._options.changed.connect(this._schedule, this);
    this._options.hovered.connect(this._onHover, this);
    _themes?.themeChanged.connect(this._onTheme, this);
  }

  override dispose(): void {
    cancelAnimationFrame(this._frame);
    this._observer.disconnect();
    this._options.changed.disconnect(this._schedule, this);
    this._options.hovered.disconnect(this._onHover, this);
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
    const training = this._model.current;
    if (training !== this._training) {
      this._clear();
      this._training = training;
      this._builder = new LineBuilder(
        this._options,
        training?.archive.details ?? null
      );
    }
    const runs = training?.curveRuns() ?? [];
    const groups = groupCurves(drawnNames(runs));
    this._drop(new Set(groups.map(group => group.stem)));
    if (!groups.some(group => FOLDED.includes(group.stem))) {
      this._folded.remove();
    }
    if (groups.length === 0) {
      this._section.remove();
      return;
    }
    if (!this._section.isConnected) {
      this.node.append(this._section); // again, it would lose the focus
    }
    const lines = groups.map(group => this._builder.lines(group, runs));
    const full = fullRange(lines.flat());
    this._full = full[1] > full[0] ? full : [full[0], full[0] + 1];
    const hasEpochs = runs.some(run => run.positions.hasEpochs);
    if (!hasEpochs && this._options.xKind === 'epoch') {
      this._options.xKind = 'step';
    }
    this._tools.update(hasEpochs);
    groups.forEach((group, index) => {
      this._drawGroup(group, lines[index] ?? [], runs);
    });
  }

  private _drawGroup(
    group: IGroup,
    lines: readonly ICurveLine[],
    runs: readonly ICurveRun[]
  ): void {
    const chart = this._chart(group);
    const whole = runs[0]?.series.get(group.members[0]?.name ?? '');
    chart.node.dataset.points = String(whole?.length ?? 0);
    const numMembers = group.members.length;
    chart.draw({
      ...this._axis(),
      lines: lines.map(line => this._styled(line, group, runs, numMembers)),
      range: this._options.zoom ?? this._full,
      logScale: this._options.logScale,
      hover: this._options.hover
    });
  }

  private _styled(
    line: ICurveLine,
    group: IGroup,
    runs: readonly ICurveRun[],
    numMembers: number
  ): ILine {
    const part = group.members[line.member]?.part ?? 'train';
    const parts = ['train', 'validation', 'test'];
    // The first run has a colour for each of its curves, others one for all.
    const color =
      line.run === 0 ? Math.max(0, parts.indexOf(part)) : runColor(line.run);
    const name = this._label(line.name);
    const run = runs[line.run]?.name ?? '';
    const label =
      runs.length === 1 ? name : numMembers === 1 ? run : `${run} · ${name}`;
    return { ...line, label, color, dashed: part !== 'train' };
  }

  private _axis(): Pick<IFrame, 'whole' | 'formatX' | 'describeX'> {
    const { _trans: trans } = this;
    switch (this._options.xKind) {
      case 'step':
        return {
          whole: true,
          formatX: formatTick,
          describeX: x => trans.__('step %1', formatCount(Math.round(x)))
        };
      case 'epoch':
        return {
          whole: false,
          formatX: formatValue,
          describeX: x => trans.__('epoch %1', x.toFixed(2))
        };
      case 'time':
        return {
          whole: true,
          formatX: formatDuration,
          describeX: x => trans.__('after %1', formatDuration(x))
        };
    }
  }

  private _chart(group: IGroup): LineChart {
    let chart = this._charts.get(group.stem);
    if (chart === undefined) {
      const folded = FOLDED.includes(group.stem);
      const label = this._label(group.stem);
      chart = new LineChart({
        name: group.stem,
        label,
        height: folded ? SMALL_HEIGHT : HEIGHT,
        hint: this._trans.__(
          'Drag: zoom. Shift+drag: move. Ctrl+wheel: zoom. Double-click: show all. Keys: + − ← → 0.'
        ),
        format: formatValue,
        onHover: x => {
          this._options.hover = x;
        },
        onZoom: range => {
          this._options.zoom = range;
        },
        onMove: (factor, shift, center) => {
          this._options.move(this._full, factor, shift, center);
        }
      });
      const made = chart;
      chart.actions.append(
        ...exportButtons({
          label,
          chart: made,
          trans: this._trans,
          training: () => this._training
        })
      );
      this._charts.set(group.stem, chart);
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

  private _onHover(): void {
    for (const chart of this._charts.values()) {
      chart.hover(this._options.hover);
    }
  }

  private _onTheme(): void {
    for (const chart of this._charts.values()) {
      chart.restyle();
    }
  }

  /** Take away the charts of quantities that are no longer there. */
  private _drop(kept: Set<string>): void {
    for (const [stem, chart] of this._charts) {
      if (!kept.has(stem)) {
        chart.dispose();
        this._charts.delete(stem);
      }
    }
  }

  private _clear(): void {
    this._drop(new Set());
  }

  private readonly _options: PlotOptions;
  private readonly _section: HTMLElement;
  private readonly _tools: CurveTools;
  private readonly _folded: HTMLDetailsElement;
  private readonly _observer: ResizeObserver;
  private readonly _charts = new Map<string, LineChart>();
  private _builder: LineBuilder;
  private _training: ITraining | null = null;
  private _full: readonly [number, number] = [0, 1];
  private _frame = 0;
}
