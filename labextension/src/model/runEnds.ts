/** Tells of runs that end while this page watches, each once. */

import { Signal, type ISignal } from '@lumino/signaling';
import type { Connection } from './connection';
import { hasEnded, type Run } from './state';

export class RunEnds {
  /** Emitted with a run that was seen going on and has ended. */
  get ended(): ISignal<this, Run> {
    return this._ended;
  }

  /** Watch the runs of a kernel, until the connection is disposed. */
  watch(connection: Connection): void {
    let going: string | null = null;
    connection.changed.connect(() => {
      const { run } = connection.state;
      if (run === null) {
        return;
      }
      if (!hasEnded(run.phase)) {
        going = run.run_id;
      } else if (going === run.run_id) {
        going = null;
        this._ended.emit(run);
      }
    });
  }

  private readonly _ended = new Signal<this, Run>(this);
}
