/**
 * The curves of a run: a chart for the loss and for each quantity that the
 * cell logs, with those of other runs in them; what the engines report on
 * their own besides is there to be unfolded.
 *
 * Plain nodes, and no widget of JupyterLab's: the sidebar shows them, and the
 * output of a cell wherever that is.
 */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { ILine } from '../charts/data';
import { LineChart, type IFrame } from '../charts/lineChart';
import type { Details } from '../model/details';
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
import {
  formatCount,
  formatDuration,
  formatTick,
  formatValue,
  shortNames
} from './format';
import { workInFrame } from './frameWork';

const HEIGHT = 170;
const SMALL_HEIGHT = 110;
/** Charts are drawn before they are scrolled to, by so much. */
const AHEAD = '100px';
/** Curves that every run has and that are seldom looked at. */
const FOLDED = ['learning_rate', 'samples_per_second'];

export interface ICurvePlotsOptions {
  plot: PlotOptions;
  trans: TranslationBundle;
  /** Called when something is to be drawn again. */
  schedule: () => void;
  /** Called when a chart has come into view, which may have to be drawn. */
  resume: () => void;
  /** Of a chart, in pixels. */
  height?: number;
  /** Buttons that act on a chart. */
  actions?: (chart: LineChart, label: string) => HTMLElement[];
}

/** A chart that is to be drawn. */
interface IWaiting {
  frame: () => IFrame;
  /** Whether its newest values are said already, where nobody sees it. */
  isTold: boolean;
}

export class CurvePlots {
  constructor(private readonly _options: ICurvePlotsOptions) {
    const { plot, trans, schedule, resume } = _options;
    this.node = document.createElement('div');
    this._builder = new LineBuilder(plot, null);
    this._folded = document.createElement('details');
    this._folded.className = 'jp-dtrain-folded';
    this._folded.dataset.testid = 'jp-dtrain-more-curves';
    const summary = document.createElement('summary');
    summary.textContent = trans.__('Learning rate and speed');
    this._folded.append(summary);
    this._folded.addEventListener('toggle', schedule);
    this._views = new IntersectionObserver(
      entries => {
        for (const { target, isIntersecting } of entries) {
          this._inView[isIntersecting ? 'add' : 'delete'](target);
        }
        resume();
      },
      { rootMargin: AHEAD }
    );
    plot.changed.connect(schedule);
    plot.hovered.connect(this._onHover, this);
  }

  readonly node: HTMLElement;

  /** Whether it is known which step belongs to which epoch. */
  get hasEpochs(): boolean {
    return this._hasEpochs;
  }

  /**
   * Show the curves of `runs` from now on, closer ones from `details` where it
   * is zoomed to. They are drawn by `drawSome`.
   */
  show(runs: readonly ICurveRun[], details: Details | null): void {
    if (details !== this._details) {
      this._details = details;
      this._builder = new LineBuilder(this._options.plot, details);
      this.clear();
    }
    this._names = shortNames(runs.map(({ name }) => name));
    const groups = groupCurves(drawnNames(runs));
    this._drop(new Set(groups.map(group => group.stem)));
    if (!groups.some(group => FOLDED.includes(group.stem))) {
      this._folded.remove();
    }
    const { plot } = this._options;
    this._place(groups);
    const lines = groups.map(group => this._builder.lines(group, runs));
    const full = fullRange(lines.flat());
    this._full = full[1] > full[0] ? full : [full[0], full[0] + 1];
    this._hasEpochs = runs.some(run => run.positions.hasEpochs);
    if (!this._hasEpochs && plot.xKind === 'epoch') {
      plot.xKind = 'step';
    }
    groups.forEach((group, index) => {
      const chart = this._chart(group);
      const whole = runs[0]?.series.get(group.members[0]?.name ?? '');
      chart.node.dataset.points = String(whole?.length ?? 0);
      // One that waits already keeps its turn.
      this._waiting.set(group.stem, {
        frame: () => this._frameOf(group, lines[index] ?? [], runs),
        isTold: false
      });
    });
  }

  /**
   * Draw some of the charts that are in view and have changed, and say the
   * newest values of others; return whether more are left for the next frame.
   */
  drawSome(): boolean {
    return workInFrame(
      this._waiting,
      ([stem, waiting]) => {
        const chart = this._charts.get(stem);
        if (chart !== undefined && this._inView.has(chart.node)) {
          return 'drawn';
        }
        return waiting.isTold ? 'nothing' : 'told';
      },
      ([stem, waiting], due) => {
        const chart = this._charts.get(stem);
        const frame = waiting.frame();
        if (due === 'drawn') {
          this._waiting.delete(stem);
          chart?.draw(frame);
        } else {
          waiting.isTold = true;
          chart?.tell(frame);
        }
        return { lines: frame.lines.length };
      }
    );
  }

  /** Draw everything again in the colours of another theme. */
  restyle(): void {
    for (const chart of this._charts.values()) {
      chart.restyle();
    }
  }

  clear(): void {
    this._drop(new Set());
  }

  dispose(): void {
    const { plot, schedule } = this._options;
    plot.changed.disconnect(schedule);
    plot.hovered.disconnect(this._onHover, this);
    this._views.disconnect();
    this.clear();
  }

  private _frameOf(
    group: IGroup,
    lines: readonly ICurveLine[],
    runs: readonly ICurveRun[]
  ): IFrame {
    const numMembers = group.members.length;
    return {
      ...this._axis(),
      lines: lines.map(line => this._styled(line, group, runs, numMembers)),
      range: this._options.plot.zoom ?? this._full,
      logScale: this._options.plot.logScale,
      hover: this._options.plot.hover
    };
  }

  private _styled(
    line: ICurveLine,
    group: IGroup,
    runs: readonly ICurveRun[],
    numMembers: number
  ): ILine {
    const part = group.members[line.member]?.part ?? 'train';
    const parts = ['train', 'validation', 'test'];
    // A run alone has a colour for each of its curves; of several each has one, as in lists, and what was not trained on is dashed.
    const color =
      runs.length === 1 ? Math.max(0, parts.indexOf(part)) : runColor(line.run);
    const name = this._label(line.name);
    const run = this._names[line.run] ?? '';
    const label =
      runs.length === 1 ? name : numMembers === 1 ? run : `${run} · ${name}`;
    return { ...line, label, color, dashed: part !== 'train' };
  }

  private _axis(): Pick<IFrame, 'whole' | 'formatX' | 'describeX'> {
    const { trans, plot } = this._options;
    switch (plot.xKind) {
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
    const [first, second] = group.members;
    // Alone, a curve has its whole name: `val_accuracy`, and not `accuracy`.
    const label = this._label(
      first !== undefined && second === undefined ? first.name : group.stem
    );
    let chart = this._charts.get(group.stem);
    if (chart !== undefined && chart.label !== label) {
      this._forget(group.stem, chart);
      chart = undefined;
    }
    if (chart === undefined) {
      const { plot, trans, actions, height = HEIGHT } = this._options;
      const folded = FOLDED.includes(group.stem);
      chart = new LineChart({
        name: group.stem,
        label,
        height: folded ? SMALL_HEIGHT : height,
        hint: trans.__(
          'Drag: zoom. Shift+drag: move. Ctrl+wheel: zoom. Double-click: reset zoom. Keys: + − ← → 0.'
        ),
        format: value =>
          value === null ? trans.__('not finite') : formatValue(value),
        onHover: x => {
          plot.hover = x;
        },
        onZoom: range => {
          plot.zoom = range;
        },
        onMove: (factor, shift, center) => {
          plot.move(this._full, factor, shift, center);
        }
      });
      chart.actions.append(...(actions?.(chart, label) ?? []));
      this._charts.set(group.stem, chart);
      this._views.observe(chart.node);
      if (folded) {
        this._folded.append(chart.node);
        this.node.append(this._folded);
      }
    }
    return chart;
  }

  /** Bring the charts into the order of their groups, whichever came first. */
  private _place(groups: readonly IGroup[]): void {
    const nodes = groups.flatMap(group => {
      const { node } = this._chart(group);
      return FOLDED.includes(group.stem) ? [] : [node];
    });
    let next = this.node.firstChild;
    for (const node of nodes) {
      if (node === next) {
        next = node.nextSibling;
      } else {
        this.node.insertBefore(node, next); // moved, it would lose the focus
      }
    }
  }

  private _label(name: string): string {
    const { trans } = this._options;
    switch (name) {
      case 'loss':
        return trans.__('Loss');
      case 'learning_rate':
        return trans.__('Learning rate');
      case 'samples_per_second':
        return trans.__('Samples/s');
      case 'utilization':
        return trans.__('Utilization');
      case 'memory_used':
        return trans.__('Memory');
      default:
        return name;
    }
  }

  private _onHover(): void {
    for (const chart of this._charts.values()) {
      chart.hover(this._options.plot.hover);
    }
  }

  /** Take away the charts of quantities that are no longer there. */
  private _drop(kept: Set<string>): void {
    for (const [stem, chart] of this._charts) {
      if (!kept.has(stem)) {
        this._forget(stem, chart);
      }
    }
  }

  private _forget(stem: string, chart: LineChart): void {
    this._views.unobserve(chart.node);
    this._inView.delete(chart.node);
    this._waiting.delete(stem);
    this._charts.delete(stem);
    chart.dispose();
  }

  private readonly _folded: HTMLDetailsElement;
  private readonly _charts = new Map<string, LineChart>();
  private readonly _views: IntersectionObserver;
  private readonly _inView = new Set<Element>();
  /** The charts that have changed, by stem; the oldest first. */
  private readonly _waiting = new Map<string, IWaiting>();
  private _builder: LineBuilder;
  /** Of the runs, as legends show them. */
  private _names: readonly string[] = [];
  private _details: Details | null = null;
  private _full: readonly [number, number] = [0, 1];
  private _hasEpochs = false;
}
