/**
 * Base of the sidebar's sections: draws the model a few times a second, and not
 * at all while nobody sees it.
 */

import { ReactWidget } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import type { Cause, TrainingModel } from '../model/training';
import { Frames } from './frames';

/**
 * Milliseconds between two drawings of what the kernel tells: texts that change
 * more often cannot be read. As long as between two of the curves, so that one
 * frame has both: each costs a page like JupyterLab some milliseconds.
 */
const INTERVAL_MS = 500;

export abstract class View extends ReactWidget {
  constructor(
    id: string,
    protected readonly model: TrainingModel,
    protected readonly trans: TranslationBundle,
    interval = INTERVAL_MS
  ) {
    super();
    this.id = id;
    this._frames = new Frames({
      interval,
      update: () => {
        this.update();
      },
      isVisible: () => this.isVisible
    });
    model.changed.connect(this._onChanged, this);
  }

  override dispose(): void {
    this._frames.dispose();
    super.dispose();
  }

  /** Draw in the next frame, if this is visible then. */
  protected schedule(): void {
    this._frames.schedule();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.update();
  }

  private _onChanged(_: TrainingModel, cause: Cause): void {
    if (cause === 'action') {
      this._frames.hurry();
    } else {
      this._frames.schedule();
    }
  }

  private readonly _frames: Frames;
}
