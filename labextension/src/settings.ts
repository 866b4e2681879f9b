/** The user's settings: how curves are drawn at first, what is told, and whether the sidebar has shown itself. */

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { PlotOptions } from './model/plotOptions';
import { X_KINDS, type XKind } from './model/xAxis';

const DEFAULT_NOTIFY_S = 20;

export class Settings {
  /** Runs that took fewer seconds are not told of when they end. */
  get notifyAfter(): number {
    return this._notifyAfter;
  }

  /** Whether the sidebar is to open when a run is seen; not before the settings have been read. */
  get openAtNextRun(): boolean {
    return this._openAtNextRun;
  }

  /** Remember, in the user's settings too, that the sidebar has opened by itself. */
  noteOpened(): void {
    this._openAtNextRun = false;
    void this._settings?.set('openAtNextRun', false);
  }

  /** Read the settings now, and again when the user changes them. */
  async follow(
    registry: ISettingRegistry,
    plugin: string,
    plot: PlotOptions
  ): Promise<void> {
    const settings = await registry.load(plugin);
    this._settings = settings;
    const read = (): void => {
      const { xAxis, smoothing, logScale, notifyAfter, openAtNextRun } =
        settings.composite;
      if (X_KINDS.includes(xAxis as XKind)) {
        plot.xKind = xAxis as XKind;
      }
      if (typeof smoothing === 'number') {
        plot.smoothing = smoothing;
      }
      plot.logScale = logScale === true;
      this._notifyAfter =
        typeof notifyAfter === 'number' ? notifyAfter : DEFAULT_NOTIFY_S;
      this._openAtNextRun = openAtNextRun === true;
    };
    read();
    settings.changed.connect(read);
  }

  private _settings: ISettingRegistry.ISettings | null = null;
  private _notifyAfter = DEFAULT_NOTIFY_S;
  private _openAtNextRun = false;
}
