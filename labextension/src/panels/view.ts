/**
 * Base of the sidebar's sections: draws the model a few times a second, and not
 * at all while nobody sees it.
 */

import { ReactWidget } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import type { Cause, TrainingModel } from '../model/training';
import { Frames } from './frames';

/** Milliseconds between two drawings of what the kernel tells: texts that change more often cannot be read. */
const INTERVAL_MS = 250;

export abstract class View extends ReactWidget {
  constructor(
    id: string,
    protected readonly model: TrainingModel,
    protected readonly trans: TranslationBundle
  ) {
    super();
    this.id = id;
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

  private readonly _frames = new Frames({
    interval: INTERVAL_MS,
    update: () => {
      this.update();
    },
    isVisible: () => this.isVisible
  });
}
