/** How busy each device was over the last minutes, for a small picture. */

import type { DeviceUse } from './state';

/** Seconds between two entries: a run of 512 ranks reports far more often. */
const EVERY_S = 1;
/** Seconds that are kept. */
export const HISTORY_S = 120;

export class DeviceHistory {
  /** Take a report; most reports make no entry. */
  add(use: DeviceUse): void {
    const last = this._times[this._times.length - 1];
    if (last !== undefined && use.time - last < EVERY_S) {
      return;
    }
    this._times.push(use.time);
    this._percents.push(use.utilization);
    while ((this._times[0] ?? use.time) < use.time - HISTORY_S) {
      this._times.shift();
      this._percents.shift();
    }
  }

  /** Seconds before the newest entry, and percent, of each entry. */
  entries(): { ago: number; percent: number }[] {
    const newest = this._times[this._times.length - 1] ?? 0;
    return this._percents.map((percent, index) => ({
      ago: newest - (this._times[index] ?? newest),
      percent
    }));
  }

  private readonly _times: number[] = [];
  private readonly _percents: number[] = [];
}
