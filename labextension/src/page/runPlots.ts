/** A grid of large charts of some runs, with what they are drawn by over it. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { Details } from '../model/details';
import { drawnNames, type ICurveRun } from '../model/lines';
import type { PlotOptions } from '../model/plotOptions';
import { exportButtons } from '../panels/curveExport';
import { CurvePlots } from '../panels/curvePlots';
import { CurveTools } from '../panels/curveTools';
import { Frames } from '../panels/frames';

export interface IRunPlotsOptions {
  plot: PlotOptions;
  trans: TranslationBundle;
  runs: () => readonly ICurveRun[];
  details: () => Details | null;
  /** Whether there is a row of how they are drawn. */
  hasTools: boolean;
}

/** Milliseconds between two drawings of what the kernel tells: large charts take long to paint, and a second moves few of their points. */
const INTERVAL_MS = 1000;
const HEIGHT = 240;

export class RunPlots {
  constructor(private readonly _options: IRunPlotsOptions) {
    const { plot, trans, hasTools, runs, details } = _options;
    this.node = document.createElement('div');
    this.node.className = 'jp-dtrain-run-plots';
    this._tools = new CurveTools(plot, trans);
    this._plots = new CurvePlots({
      plot,
      trans,
      height: HEIGHT,
      schedule: this._frames.hurry,
      resume: this._frames.resume,
      actions: (chart, label) =>
        exportButtons({
          label,
          chart,
          trans,
          training: () => {
            const known = details();
            return known === null
              ? null
              : { curveRuns: runs, archive: { details: known } };
          }
        })
    });
    this._plots.node.className = 'jp-dtrain-chart-grid';
    if (hasTools) {
      const tools = document.createElement('div');
      tools.className = 'jp-dtrain-run-plot-tools';
      tools.append(this._tools.kind, this._tools.node);
      this.node.append(tools);
    }
    this.node.append(this._plots.node);
    this._observer.observe(this.node);
  }

  readonly node: HTMLElement;

  /** Draw what is new, soon. */
  readonly schedule = (): void => {
    this._frames.schedule();
  };

  /** Draw what the user waits for, of which more will be here soon. */
  readonly scheduleSoon = (): void => {
    this._frames.scheduleSoon();
  };

  /** Draw at once: the user waits for it. */
  readonly hurry = (): void => {
    this._frames.hurry();
  };

  restyle(): void {
    this._plots.restyle();
  }

  dispose(): void {
    this._frames.dispose();
    this._observer.disconnect();
    this._plots.dispose();
  }

  private _update(): void {
    const runs = this._options.runs();
    if (drawnNames(runs).length === 0) {
      this._plots.clear();
      return;
    }
    this._plots.show(runs, this._options.details());
    this._tools.update(this._plots.hasEpochs);
  }

  private readonly _tools: CurveTools;
  private readonly _plots: CurvePlots;
  private readonly _frames = new Frames({
    interval: INTERVAL_MS,
    update: () => {
      this._update();
    },
    drawSome: () => this._plots.drawSome(),
    isVisible: () => this.node.isConnected && this.node.offsetParent !== null
  });
  private readonly _observer = new ResizeObserver(this._frames.hurry);
}
