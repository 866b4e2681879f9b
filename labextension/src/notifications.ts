/** Notices in the corner of the page when a run that took its time ends. */

import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { EndedRun } from './model/runEnds';
import type { TrainingModel } from './model/training';
import { formatCount, formatDuration, formatLoss } from './panels/format';

export interface INotificationOptions {
  model: TrainingModel;
  trans: TranslationBundle;
  /** Runs that took fewer seconds are not told of. */
  minSeconds: () => number;
  /** Bring the sidebar to the front. */
  show: () => void;
}

/** Tell of runs that end, also those of notebooks that are not current. */
export function addNotifications(options: INotificationOptions): void {
  const { model, trans, minSeconds, show } = options;
  const actions = [
    {
      label: trans.__('Show'),
      caption: trans.__('Show the sidebar for distributed training'),
      callback: show
    }
  ];
  model.runEnds.ended.connect((_, run) => {
    if (run.elapsed < minSeconds()) {
      return;
    }
    const text = runEndText(run, trans);
    switch (run.phase) {
      case 'finished':
        Notification.success(text, { actions, autoClose: 10_000 });
        break;
      case 'failed':
      case 'lost':
        Notification.error(text, { actions, autoClose: false });
        break;
      default:
        Notification.info(text, { actions, autoClose: 10_000 });
    }
  });
}

function runEndText(run: EndedRun, trans: TranslationBundle): string {
  if (run.trials !== null && run.phase !== 'lost') {
    const { ended, pruned, total } = run.trials;
    if (pruned > 0) {
      return trans.__(
        '%1 of %2 trials ended, %3 were pruned. Shown: “%4”.',
        String(ended),
        String(total),
        String(pruned),
        run.name
      );
    }
    return trans.__(
      '%1 of %2 trials ended. Shown: “%3”.',
      String(ended),
      String(total),
      run.name
    );
  }
  const after = trans.__(
    '%1 steps in %2',
    formatCount(run.step),
    formatDuration(run.elapsed)
  );
  const loss = formatLoss(run);
  switch (run.phase) {
    case 'finished':
      return loss === null
        ? trans.__('“%1” finished (%2).', run.name, after)
        : trans.__('“%1” finished (%2, loss %3).', run.name, after, loss);
    case 'failed':
      return trans.__(
        '“%1” failed after %2: %3',
        run.name,
        after,
        run.error ?? ''
      );
    case 'alone':
      return trans.__('“%1” continues without its kernel.', run.name);
    case 'lost':
      return trans.__(
        '“%1” was lost with its kernel, after %2.',
        run.name,
        after
      );
    default:
      return trans.__('“%1” was stopped after %2.', run.name, after);
  }
}
