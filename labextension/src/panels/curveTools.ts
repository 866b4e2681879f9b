/**
 * The controls over the curves: what they are drawn over, which stands beside
 * the section's title, and a row of how.
 */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { PlotOptions } from '../model/plotOptions';
import { X_KINDS, type XKind } from '../model/xAxis';

export class CurveTools {
  constructor(
    private readonly _options: PlotOptions,
    trans: TranslationBundle
  ) {
    this.node = document.createElement('div');
    this.node.className = 'jp-dtrain-curve-tools';

    this._kind = document.createElement('select');
    this._kind.className = 'jp-dtrain-x-axis';
    this._kind.dataset.testid = 'jp-dtrain-x-axis';
    const names: Record<XKind, string> = {
      step: trans.__('Step'),
      epoch: trans.__('Epoch'),
      time: trans.__('Time')
    };
    for (const kind of X_KINDS) {
      this._kind.add(new Option(names[kind], kind));
    }
    this._kind.title = trans.__('X axis');
    this._kind.setAttribute('aria-label', this._kind.title);
    this._kind.addEventListener('change', () => {
      _options.xKind = this._kind.value as XKind;
    });

    this._smoothing = document.createElement('input');
    this._smoothing.type = 'range';
    this._smoothing.min = '0';
    this._smoothing.max = '0.99';
    this._smoothing.step = '0.01';
    this._smoothing.dataset.testid = 'jp-dtrain-smoothing';
    this._smoothing.addEventListener('input', () => {
      _options.smoothing = Number(this._smoothing.value);
    });
    const smoothing = labelled(trans.__('Smooth'), this._smoothing);
    smoothing.title = trans.__('Smoothing (EMA factor)');

    this._log = document.createElement('input');
    this._log.type = 'checkbox';
    this._log.dataset.testid = 'jp-dtrain-log-scale';
    this._log.addEventListener('change', () => {
      _options.logScale = this._log.checked;
    });
    const log = labelled(trans.__('Log'), this._log);
    log.title = trans.__('Logarithmic scale; values below 0 are not drawn');

    this._reset = document.createElement('button');
    this._reset.type = 'button';
    this._reset.className = 'jp-dtrain-link';
    this._reset.dataset.testid = 'jp-dtrain-reset-zoom';
    this._reset.textContent = trans.__('Reset zoom');
    this._reset.title = trans.__('Show the whole range');
    this._reset.addEventListener('click', () => {
      _options.zoom = null;
    });
    this.node.append(smoothing, log, this._reset);
  }

  readonly node: HTMLElement;

  /** The menu of what the curves are drawn over. */
  get kind(): HTMLElement {
    return this._kind;
  }

  /** Show the options as they are. */
  update(hasEpochs: boolean): void {
    const { xKind, smoothing, logScale, zoom } = this._options;
    const epoch = this._kind.options[X_KINDS.indexOf('epoch')];
    if (epoch !== undefined) {
      epoch.disabled = !hasEpochs;
    }
    this._kind.value = xKind;
    if (Number(this._smoothing.value) !== smoothing) {
      this._smoothing.value = String(smoothing);
    }
    this._smoothing.setAttribute(
      'aria-valuetext',
      smoothing === 0 ? '0' : smoothing.toFixed(2)
    );
    this._log.checked = logScale;
    this._reset.hidden = zoom === null;
  }

  private readonly _kind: HTMLSelectElement;
  private readonly _smoothing: HTMLInputElement;
  private readonly _log: HTMLInputElement;
  private readonly _reset: HTMLButtonElement;
}

function labelled(text: string, input: HTMLInputElement): HTMLLabelElement {
  const label = document.createElement('label');
  const name = document.createElement('span');
  name.textContent = text;
  label.append(...(input.type === 'checkbox' ? [input, name] : [name, input]));
  return label;
}
