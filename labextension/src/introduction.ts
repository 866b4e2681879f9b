/** Opens the sidebar at the first run, for a user who does not know yet that it is there. */

import { hasEnded } from './model/state';
import type { TrainingModel } from './model/training';
import type { Settings } from './settings';

export interface IIntroductionOptions {
  model: TrainingModel;
  settings: Settings;
  /** Bring the sidebar to the front. */
  show: () => void;
}

/** Open the sidebar when a run is seen, if the user's settings ask for it; they do so once. */
export function openAtFirstRun(options: IIntroductionOptions): void {
  const { model, settings, show } = options;
  model.changed.connect(() => {
    const run = model.current?.connection.state.run ?? null;
    if (run !== null && !hasEnded(run.phase) && settings.openAtNextRun) {
      settings.noteOpened();
      show();
    }
  });
}
