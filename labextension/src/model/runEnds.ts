/** Tells of runs that end while this page watches, each once; all trials of a cell are one. */

import { Signal, type ISignal } from '@lumino/signaling';
import type { Connection } from './connection';
import { hasEnded, type Run } from './state';
import type { ITrialCount } from './sweeps';

/** A run that has ended; of trials the best, or the last that was shown, with how many of them have ended and the time of all. */
export type EndedRun = Run & { trials: ITrialCount | null };

export class RunEnds {
  /** Emitted with a run that was seen going on and has ended. */
  get ended(): ISignal<this, EndedRun> {
    return this._ended;
  }

  /** Watch the runs of a kernel, until the connection is disposed. */
  watch(connection: Connection): void {
    let going: string | null = null;
    connection.changed.connect(() => {
      const { run, trialCount: trials } = connection.state;
      if (run === null) {
        return;
      }
      // A kernel that has gone tells no more of its trials.
      const over = trials === null || trials.over || run.phase === 'lost';
      if (!hasEnded(run.phase) || !over) {
        going = trials === null ? run.run_id : TRIALS;
      } else if (going === (trials === null ? run.run_id : TRIALS)) {
        going = null;
        const { elapsed } = trials ?? run;
        this._ended.emit({ ...run, elapsed, trials });
      }
    });
  }

  private readonly _ended = new Signal<this, EndedRun>(this);
}

/** Stands for all trials of a cell. */
const TRIALS = 'trials';
