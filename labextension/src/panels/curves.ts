/** The sidebar's section of curves: the charts, and what they are drawn by. */

import type { IThemeManager } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { drawnNames } from '../model/lines';
import type { Cause, TrainingModel } from '../model/training';
import { exportButtons } from './curveExport';
import { CurvePlots } from './curvePlots';
import { CurveTools } from './curveTools';
import { Frames } from './frames';

/** Milliseconds between two drawings of what the kernel tells. */
const INTERVAL_MS = 500;

export class CurvesView extends Widget {
  constructor(
    private readonly _model: TrainingModel,
    trans: TranslationBundle,
    private readonly _themes: IThemeManager | null
  ) {
    super();
    this.id = 'jp-dtrain-curves';
    this._section = document.createElement('section');
    this._section.className = 'jp-dtrain-section';
    this._section.dataset.testid = 'jp-dtrain-curves';
    this._section.setAttribute('aria-labelledby', 'jp-dtrain-curves-title');
    const header = document.createElement('header');
    const title = document.createElement('h2');
    title.id = 'jp-dtrain-curves-title';
    title.textContent = trans.__('Curves');
    this._tools = new CurveTools(_model.plot, trans);
    header.append(title, this._tools.kind);
    this._plots = new CurvePlots({
      plot: _model.plot,
      trans,
      schedule: this._frames.hurry,
      resume: this._frames.resume,
      actions: (chart, label) =>
        exportButtons({ label, chart, trans, training: () => _model.current })
    });
    this._section.append(header, this._tools.node, this._plots.node);
    this._observer = new ResizeObserver(this._frames.hurry);
    _model.changed.connect(this._onChanged, this);
    _themes?.themeChanged.connect(this._onTheme, this);
  }

  override dispose(): void {
    this._frames.dispose();
    this._observer.disconnect();
    this._themes?.themeChanged.disconnect(this._onTheme, this);
    this._plots.dispose();
    super.dispose();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._observer.observe(this.node);
    this._frames.schedule();
  }

  protected override onBeforeDetach(message: Message): void {
    this._observer.disconnect();
    super.onBeforeDetach(message);
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._frames.schedule();
  }

  private _update(): void {
    const training = this._model.current;
    const runs = training?.curveRuns() ?? [];
    if (drawnNames(runs).length === 0) {
      this._plots.clear();
      this._section.remove();
      return;
    }
    if (!this._section.isConnected) {
      this.node.append(this._section); // again, it would lose the focus
    }
    this._plots.show(runs, training?.archive.details ?? null);
    this._tools.update(this._plots.hasEpochs);
  }

  private _onChanged(_: TrainingModel, cause: Cause): void {
    if (cause === 'action') {
      this._frames.hurry();
    } else {
      this._frames.schedule();
    }
  }

  private _onTheme(): void {
    this._plots.restyle();
  }

  private readonly _section: HTMLElement;
  private readonly _tools: CurveTools;
  private readonly _plots: CurvePlots;
  private readonly _observer: ResizeObserver;
  private readonly _frames = new Frames({
    interval: INTERVAL_MS,
    update: () => {
      this._update();
    },
    drawSome: () => this._plots.drawSome(),
    isVisible: () => this.isVisible
  });
}
