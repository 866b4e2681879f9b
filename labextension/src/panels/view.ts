/**
 * Base of the sidebar's sections: draws the model at most once a frame, and not
 * at all while nobody sees it.
 */

import { ReactWidget } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import type { TrainingModel } from '../model/training';
import { Frames } from './frames';

export abstract class View extends ReactWidget {
  constructor(
    id: string,
    protected readonly model: TrainingModel,
    protected readonly trans: TranslationBundle
  ) {
    super();
    this.id = id;
    model.changed.connect(this.schedule, this);
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

  private readonly _frames = new Frames({
    update: () => {
      this.update();
    },
    isVisible: () => this.isVisible
  });
}
