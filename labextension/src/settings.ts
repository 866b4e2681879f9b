/** The user's settings: how curves are drawn at first, and what is told. */

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { PlotOptions } from './model/plotOptions';
import { X_KINDS, type XKind } from './model/xAxis';

const DEFAULT_NOTIFY_S = 20;

export class Settings {
  /** Runs that took fewer seconds are not told of when they end. */
  get notifyAfter(): number {
    return this._notifyAfter;
  }

  /** Read the settings now, and again when the user changes them. */
  async follow(
    registry: ISettingRegistry,
    plugin: string,
    plot: PlotOptions
  ): Promise<void> {
    const settings = await registry.load(plugin);
    const read = (): void => {
      const { xAxis, smoothing, logScale, notifyAfter } = settings.composite;
      if (X_KINDS.includes(xAxis as XKind)) {
        plot.xKind = xAxis as XKind;
      }
      if (typeof smoothing === 'number') {
        plot.smoothing = smoothing;
      }
      plot.logScale = logScale === true;
      this._notifyAfter =
        typeof notifyAfter === 'number' ? notifyAfter : DEFAULT_NOTIFY_S;
    };
    read();
    settings.changed.connect(read);
  }

  private _notifyAfter = DEFAULT_NOTIFY_S;
}
