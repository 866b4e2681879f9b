/**
 * Draws what has changed, in the next frame, and then no more often than can
 * be read: a page that is painted in every frame takes a core from the training
 * where no GPU paints it.
 */

export interface IFramesOptions {
  /** Take over what has changed. */
  update: () => void;
  /** Draw a part of it that fits into a frame; say whether there is more. */
  drawSome?: () => boolean;
  /** Whether anybody can see it: else nothing is drawn. */
  isVisible?: () => boolean;
  /** Milliseconds between two updates, but for those that are urgent. */
  interval?: number;
}

export class Frames {
  constructor(private readonly _options: IFramesOptions) {}

  /** Draw in the next frame, if it is visible then. */
  readonly schedule = (): void => {
    this._isStale = true;
    const wait = this._due - performance.now();
    if (wait <= 0) {
      this._request();
    } else {
      this._timer ??= setTimeout(() => {
        this._timer = undefined;
        this._request();
      }, wait);
    }
  };

  /** Draw in the next frame: the user has done something and waits for it. */
  readonly hurry = (): void => {
    this._due = 0;
    this.schedule();
  };

  dispose(): void {
    clearTimeout(this._timer);
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
      this._due = performance.now() + (this._options.interval ?? 0);
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
  private _timer: ReturnType<typeof setTimeout> | undefined;
  /** When the next update may be. */
  private _due = 0;
  private _isStale = false;
}
