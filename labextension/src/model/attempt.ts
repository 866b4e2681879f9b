/** One attempt to connect to a kernel, until the connection is lost. */

import type { IOpenComm } from './comm';
import type { CommandSender } from './commands';

/**
 * The comms of one attempt to connect. Messages and comms that come after it
 * was closed belong to nobody: the comms are closed, the messages dropped.
 */
export class Attempt {
  /** What questions about runs are sent with, once there was one. */
  questions: Promise<CommandSender> | null = null;

  get closed(): boolean {
    return this._closed;
  }

  keep(comm: IOpenComm): void {
    if (this._closed) {
      comm.close();
    } else {
      this._comms.push(comm);
    }
  }

  close(): void {
    this._closed = true;
    for (const comm of this._comms.splice(0)) {
      comm.close();
    }
  }

  private readonly _comms: IOpenComm[] = [];
  private _closed = false;
}
