/**
 * Draws what has changed, in the next frame, and then no more often than can
 * be read: a page that is painted in every frame takes a core from the training
 * where no GPU paints it. Many large charts are drawn more seldom: what they
 * take, with what the browser does to paint them, is a part of the time.
 */

/** The part of the time that goes into what nobody has asked for. */
const SHARE = 0.08;
/** Milliseconds between two updates at most, whatever they take. */
const LONGEST_MS = 5000;

export interface IFramesOptions {
  /** Take over what has changed. */
  update: () => void;
  /** Draw a part of it that fits into a frame; say whether there is more. */
  drawSome?: () => boolean;
  /** Whether anybody can see it: else nothing is drawn. */
  isVisible?: () => boolean;
  /** Milliseconds between two updates at least, but for those that are urgent; without, none is put off. */
  interval?: number;
}

export class Frames {
  constructor(private readonly _options: IFramesOptions) {}

  /** Draw in the next frame, if it is visible then. */
  readonly schedule = (): void => {
    this._isStale = true;
    const wait = this._isUrgent ? 0 : this._due - performance.now();
    if (wait <= 0) {
      this._request();
    } else {
      this._timer ??= setTimeout(() => {
        this._timer = undefined;
        this.schedule(); // which may have been put off meanwhile
      }, wait);
    }
  };

  /** Draw in the next frame: the user has done something and waits for it. */
  readonly hurry = (): void => {
    this._isUrgent = true;
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
    const began = performance.now();
    // What comes while a part of the last update is drawn waits for its turn.
    if (this._isStale && (this._isUrgent || began >= this._due)) {
      this._isStale = this._isUrgent = false;
      this._updated = began;
      this._spent = 0;
      this._options.update();
      this._due = performance.now() + (this._options.interval ?? 0);
    } else if (this._isStale) {
      this.schedule(); // it was put off when this frame was asked for already
    }
    if (this._options.drawSome?.() === true) {
      this._request();
    }
    if (this._options.interval !== undefined) {
      // Comes when the frame is painted.
      setTimeout(() => {
        this._note(performance.now() - began);
      });
    }
  }

  /** Put off the next update by what this one has taken. */
  private _note(spent: number): void {
    this._spent += spent;
    const pause = Math.min(LONGEST_MS, this._spent / SHARE);
    this._due = Math.max(this._due, this._updated + pause);
  }

  private _isVisible(): boolean {
    return this._options.isVisible?.() ?? true;
  }

  private _frame = 0;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  /** When the last update was, and the milliseconds that its frames have taken. */
  private _updated = 0;
  private _spent = 0;
  /** When the next update may be. */
  private _due = 0;
  private _isStale = false;
  private _isUrgent = false;
}
