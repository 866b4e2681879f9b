/** Draws what has changed once a frame, however often it has changed. */

export interface IFramesOptions {
  /** Take over what has changed. */
  update: () => void;
  /** Draw a part of it that fits into a frame; say whether there is more. */
  drawSome?: () => boolean;
  /** Whether anybody can see it: else nothing is drawn. */
  isVisible?: () => boolean;
}

export class Frames {
  constructor(private readonly _options: IFramesOptions) {}

  /** Draw in the next frame, if it is visible then. */
  readonly schedule = (): void => {
    this._isStale = true;
    this._request();
  };

  dispose(): void {
    cancelAnimationFrame(this._frame);
  }

  private _request(): void {
    if (this._frame === 0 && this._isVisible()) {
      this._frame = requestAnimationFrame(() => {
        this._frame = 0;
        if (this._isVisible()) {
          this._draw();
        }
      });
    }
  }

  private _draw(): void {
    if (this._isStale) {
      this._isStale = false;
      this._options.update();
    }
    if (this._options.drawSome?.() === true) {
      this._request();
    }
  }

  private _isVisible(): boolean {
    return this._options.isVisible?.() ?? true;
  }

  private _frame = 0;
  private _isStale = false;
}
