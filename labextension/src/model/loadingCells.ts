/**
 * Cells after which the kernel is asked for the extension, because they may
 * have loaded it: told of while one runs, ever more seldom, and at its end.
 *
 * Whether the kernel is busy does not tell that a cell has ended: it is idle
 * after an answer on a subshell, too, while a cell goes on.
 */

import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';
import type { KernelMessage } from '@jupyterlab/services';
import type { KernelLink } from './comm';

/** Code that may load the extension, or start a run. */
const MAY_LOAD = /dtrain|distribute|%run\b/;
/** A cell may load it and train for hours: told of then, ever more seldom. */
const RUNNING_MS = 1000;

export interface ICellHandlers {
  /** A cell that may have loaded the extension runs still. */
  onRunning: () => void;
  onEnded: () => void;
}

export class LoadingCells implements IDisposable {
  constructor(
    private readonly _kernel: KernelLink,
    private readonly _handlers: ICellHandlers
  ) {
    _kernel.iopubMessage.connect(this._onIOPub, this);
  }

  /** Whether any cell counts when it has ended, whatever it was. */
  eager = false;

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    clearTimeout(this._timer);
    Signal.clearData(this);
  }

  private _onIOPub(_: unknown, message: KernelMessage.IIOPubMessage): void {
    const cell = (message.parent_header as { msg_id?: string }).msg_id;
    if (message.header.msg_type === 'execute_input') {
      const { code } = message.content as { code: string };
      const mayLoad = MAY_LOAD.test(code);
      this._cell = mayLoad || this.eager ? cell : undefined;
      clearTimeout(this._timer);
      if (mayLoad && this._kernel.supportsSubshells) {
        this._tellIn(RUNNING_MS);
      }
    } else if (
      message.header.msg_type === 'status' &&
      cell !== undefined &&
      cell === this._cell
    ) {
      const status = message.content as { execution_state: string };
      if (status.execution_state === 'idle') {
        clearTimeout(this._timer);
        this._cell = undefined;
        this._handlers.onEnded();
      }
    }
  }

  private _tellIn(ms: number): void {
    this._timer = setTimeout(() => {
      this._handlers.onRunning();
      this._tellIn(2 * ms);
    }, ms);
  }

  /** The message of the cell that runs, if it counts. */
  private _cell: string | undefined;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private _isDisposed = false;
}
