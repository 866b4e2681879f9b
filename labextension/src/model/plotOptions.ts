/** How the curves are drawn: what all charts have in common. */

import { Signal, type ISignal } from '@lumino/signaling';
import type { XKind } from './xAxis';

export type Range = readonly [number, number];

export class PlotOptions {
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get xKind(): XKind {
    return this._xKind;
  }

  set xKind(value: XKind) {
    if (value !== this._xKind) {
      this._xKind = value;
      this._zoom = null;
      this._hover = null;
      this._changed.emit();
    }
  }

  /** Weight of the past in the moving average, from 0 (off) to 0.99. */
  get smoothing(): number {
    return this._smoothing;
  }

  set smoothing(value: number) {
    this._smoothing = Math.min(0.99, Math.max(0, value));
    this._changed.emit();
  }

  get logScale(): boolean {
    return this._logScale;
  }

  set logScale(value: boolean) {
    this._logScale = value;
    this._changed.emit();
  }

  /** The part of the x axis that is shown; `null`: all of it. */
  get zoom(): Range | null {
    return this._zoom;
  }

  set zoom(value: Range | null) {
    if (value === null || value[1] > value[0]) {
      this._zoom = value;
      this._changed.emit();
    }
  }

  /** The pointer has moved over a chart, and nothing else has changed. */
  get hovered(): ISignal<this, void> {
    return this._hovered;
  }

  /** Where the pointer is on the x axis of one of the charts. */
  get hover(): number | null {
    return this._hover;
  }

  set hover(value: number | null) {
    if (value !== this._hover) {
      this._hover = value;
      this._hovered.emit();
    }
  }

  /**
   * Show a part `factor` times as wide around `center`, moved by `shift` times
   * its width; never more than `full`.
   */
  move(full: Range, factor: number, shift = 0, center?: number): void {
    const [low, high] = this._zoom ?? full;
    const width = Math.min(full[1] - full[0], (high - low) * factor);
    const middle = center ?? (low + high) / 2;
    const share = high > low ? (middle - low) / (high - low) : 0.5;
    const wanted = middle - share * width + shift * width;
    const from = Math.min(Math.max(full[0], wanted), full[1] - width);
    this.zoom = width >= full[1] - full[0] ? null : [from, from + width];
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _hovered = new Signal<this, void>(this);
  private _xKind: XKind = 'step';
  private _smoothing = 0;
  private _logScale = false;
  private _zoom: Range | null = null;
  private _hover: number | null = null;
}
