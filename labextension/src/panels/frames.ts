/**
 * Draws what has changed, in the next frame, and then no more often than can
 * be read: a page that is painted in every frame takes a core from the training
 * where no GPU paints it. Many large charts are drawn more seldom: what they
 * take, with what the browser does to paint them, is a part of the time.
 */

/** The part of the time that goes into what nobody has asked for. */
const SHARE = 0.08;
/** The part of it that goes into what the user has asked for and the kernel is still sending. */
const SOON_SHARE = 0.4;
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

/** How soon something is to be drawn: when its turn comes, as it arrives from the kernel, or at once. */
type Urgency = 'later' | 'soon' | 'now';

export class Frames {
  constructor(private readonly _options: IFramesOptions) {}

  /** Draw in the next frame, if it is visible then and its turn has come. */
  readonly schedule = (): void => {
    this._want('later');
  };

  /** Draw what the user waits for, of which more may come at any moment: at once, but for a while after what took long. */
  readonly scheduleSoon = (): void => {
    this._want('soon');
  };

  /** Draw in the next frame: the user has done something and waits for it. */
  readonly hurry = (): void => {
    this._want('now');
  };

  /** Draw in the next frame what is left of the last update, if anything is: it has come into view. */
  readonly resume = (): void => {
    this._request();
  };

  dispose(): void {
    clearTimeout(this._timer);
    cancelAnimationFrame(this._frame);
  }

  private _want(urgency: Urgency): void {
    if (this._wanted === null || URGENCIES[urgency] > URGENCIES[this._wanted]) {
      this._wanted = urgency;
    }
    this._plan();
  }

  /** Ask for a frame when what is wanted is due, which may have been put off meanwhile. */
  private _plan(): void {
    clearTimeout(this._timer);
    if (this._wanted === null) {
      return;
    }
    const wait = this._due(this._wanted) - performance.now();
    if (wait <= 0) {
      this._request();
    } else {
      this._timer = setTimeout(() => {
        this._plan();
      }, wait);
    }
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
    if (this._wanted !== null && began >= this._due(this._wanted)) {
      this._wanted = null;
      this._updated = began;
      this._spent = 0;
      this._options.update();
      this._ended = performance.now();
    } else {
      this._plan(); // it was put off when this frame was asked for already
    }
    if (this._options.drawSome?.() === true) {
      this._request();
    }
    if (this._options.interval !== undefined) {
      // Comes when the frame is painted.
      setTimeout(() => {
        this._spent += performance.now() - began;
      });
    }
  }

  /** When the next update may be: later, the longer the last one has taken. */
  private _due(urgency: Urgency): number {
    const { interval = 0 } = this._options;
    switch (urgency) {
      case 'now':
        return 0;
      case 'soon':
        return this._updated + this._spent / SOON_SHARE;
      case 'later': {
        const pause = Math.min(LONGEST_MS, this._spent / SHARE);
        return together(
          Math.max(
            this._ended,
            this._updated + interval / 2,
            this._updated + pause
          ),
          interval
        );
      }
    }
  }

  private _isVisible(): boolean {
    return this._options.isVisible?.() ?? true;
  }

  private _frame = 0;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  /** When the last update began and ended, and the milliseconds that its frames have taken. */
  private _updated = -Infinity;
  private _ended = -Infinity;
  private _spent = 0;
  /** What is to be drawn; `null`: nothing has changed. */
  private _wanted: Urgency | null = null;
}

/**
 * The first moment from `due` on at which all that has this interval is drawn:
 * one frame for all of a page costs little more than one for a part of it.
 */
function together(due: number, interval: number): number {
  return interval === 0 ? due : Math.ceil(due / interval) * interval;
}

const URGENCIES: Record<Urgency, number> = { later: 0, soon: 1, now: 2 };
