/**
 * One kernel's two comms and the state that they feed.
 *
 * Two comms, not one: the kernel writes telemetry from its busy main thread,
 * and a comm that does so may no longer be answered on a subshell. Commands
 * have a comm of their own, which the kernel answers while a cell runs.
 *
 * A kernel without the extension closes the comm at once. It is asked again
 * after, and while, it executes something that may load the extension, and not
 * otherwise: each question leaves a line in the kernel's log.
 */

import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';
import {
  COMMAND_TARGET,
  PROTOCOL_VERSION,
  RECORD_TARGET,
  TELEMETRY_TARGET,
  type CommandName,
  type IBatch,
  type ICommand,
  type IReply,
  type Update
} from '../protocol';
import { Attempt } from './attempt';
import { GONE, openComm, type KernelLink } from './comm';
import { CommandError, CommandSender, heard } from './commands';
import { LoadingCells } from './loadingCells';
import { TrainingState } from './state';

/**
 * `waiting`: for the kernel, or for its first message. `absent`: the extension
 * is not loaded there. `mismatch`: another version of the protocol. `gone`: the
 * kernel is restarting or dead.
 */
export type ConnectionStatus =
  'waiting' | 'connected' | 'absent' | 'mismatch' | 'gone';

/** Several cells in a row ask once: this long after the end of the first. */
const SOON_MS = 300;
/** A kernel that comes back is connected to anew; else it is asked by then. */
const BACK_MS = 2000;
/** How long an answer about runs may take: there may be millions of points. */
const ANSWER_MS = 60_000;

export class Connection implements IDisposable {
  constructor(readonly kernel: KernelLink) {
    kernel.statusChanged.connect(this._onStatus, this);
    kernel.connectionStatusChanged.connect(this._onConnectionStatus, this);
    this._cells = new LoadingCells(kernel, {
      onRunning: () => {
        if (this._status === 'absent') {
          this._open();
        }
      },
      onEnded: () => {
        this._executed = true;
        this._retrySoon();
      }
    });
    kernel.disposed.connect(this.dispose, this);
    this._open();
  }

  readonly state = new TrainingState();

  /** Something changed in `status`, `state` or what is under way. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get status(): ConnectionStatus {
    return this._status;
  }

  /** The protocol version of the kernel, once it has said. */
  get kernelVersion(): number | null {
    return this._kernelVersion;
  }

  /** Whether commands can be sent. */
  get canCommand(): boolean {
    return this._sender !== null;
  }

  /** Whether a cell is running, so that a plain reply may have to wait. */
  get busy(): boolean {
    return this.kernel.status === 'busy';
  }

  /** Whether commands would wait for a cell's end: there are no subshells (ipykernel 6). */
  get deaf(): boolean {
    return this._sender !== null && !this._sender.onSubshell && this.busy;
  }

  /**
   * Whether somebody is looking: the kernel is then asked after everything
   * that it executes, whatever it was.
   */
  get eager(): boolean {
    return this._cells.eager;
  }

  set eager(value: boolean) {
    if (value && !this._cells.eager && this._executed) {
      this._retrySoon();
    }
    this._cells.eager = value;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Send a command; resolves with the answer, `null`: the kernel was interrupted instead. */
  async send(
    name: CommandName,
    options: Partial<ICommand> = {}
  ): Promise<IReply | null> {
    if (this._sender === null) {
      throw new CommandError('closed', 'not connected');
    }
    const sender = this._sender;
    if (this.deaf && name === 'stop_run') {
      await this.kernel.interrupt(); // which stops a run after its step
      return null;
    }
    if (this.deaf) {
      await heard(this.kernel);
    }
    return sender.send(name, options);
  }

  /** Ask about runs on a comm of their own: a long answer holds up no Stop. */
  async ask(
    name: CommandName,
    options: Partial<ICommand> = {}
  ): Promise<IReply> {
    if (this.deaf) {
      await heard(this.kernel);
    }
    const attempt = this._attempt;
    if (attempt === null || this._sender === null) {
      throw new CommandError('closed', 'not connected');
    }
    attempt.questions ??= this._openSender(attempt, RECORD_TARGET, ANSWER_MS);
    return (await attempt.questions).send(name, options);
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._cells.dispose();
    this._close();
    this._setStatus('gone');
    Signal.clearData(this);
  }

  /** Open the telemetry comm, if the kernel is there and it is not open. */
  private _open(): void {
    const { kernel } = this;
    if (
      this._isDisposed ||
      this._attempt !== null ||
      kernel.connectionStatus !== 'connected' ||
      GONE.includes(kernel.status) ||
      kernel.status === 'starting'
    ) {
      return;
    }
    const attempt = new Attempt();
    this._attempt = attempt;
    this._executed = false;
    this._setStatus('waiting');
    void this._openTelemetry(attempt).catch(() => {
      this._onClosed(attempt);
    });
  }

  private async _openTelemetry(attempt: Attempt): Promise<void> {
    const spec = await this.kernel.spec;
    if (spec !== undefined && spec.language !== 'python') {
      this._onClosed(attempt);
      return;
    }
    attempt.keep(
      await openComm(this.kernel, TELEMETRY_TARGET, {
        onMessage: data => {
          if (!attempt.closed) {
            this._onTelemetry(attempt, data as unknown as IBatch);
          }
        },
        onClose: () => {
          this._onClosed(attempt);
        }
      })
    );
  }

  private async _openCommands(attempt: Attempt): Promise<void> {
    const sender = await this._openSender(attempt, COMMAND_TARGET);
    if (!attempt.closed) {
      this._sender = sender;
      this._changed.emit();
    }
  }

  private async _openSender(
    attempt: Attempt,
    target: string,
    replyMs?: number
  ): Promise<CommandSender> {
    const comm = await openComm(this.kernel, target, {
      onMessage: data => {
        sender.receive(data as unknown as IReply);
      },
      onClose: () => {
        this._onClosed(attempt);
      }
    });
    const sender = new CommandSender(
      data => {
        comm.send(data);
      },
      replyMs,
      comm.onSubshell
    );
    attempt.keep({
      onSubshell: comm.onSubshell,
      send: data => {
        comm.send(data);
      },
      close: () => {
        sender.close();
        comm.close();
      }
    });
    return sender;
  }

  private _onTelemetry(attempt: Attempt, batch: IBatch): void {
    for (const message of batch.messages) {
      this._onUpdate(attempt, message);
    }
    this._changed.emit();
  }

  private _onUpdate(attempt: Attempt, update: Update): void {
    if (update.type === 'snapshot') {
      this._kernelVersion = update.version;
      if (update.version !== PROTOCOL_VERSION) {
        attempt.close();
        this._setStatus('mismatch');
        return;
      }
    }
    if (attempt.closed) {
      return;
    }
    this.state.apply(update);
    // Whoever is told of the connection finds the state of this kernel.
    if (update.type === 'snapshot' && this._status !== 'connected') {
      this._setStatus('connected');
      void this._openCommands(attempt).catch(() => {
        this._onClosed(attempt);
      });
    }
  }

  /** The kernel closed a comm: it has no such target, or no longer. */
  private _onClosed(attempt: Attempt): void {
    if (this._attempt !== attempt || this._status === 'mismatch') {
      return;
    }
    this._close();
    this._setStatus('absent');
    if (this._executed) {
      this._retrySoon();
    }
  }

  private _close(): void {
    clearTimeout(this._timer);
    this._timer = undefined;
    this._sender?.close();
    this._sender = null;
    this._attempt?.close();
    this._attempt = null;
  }

  private _onStatus(): void {
    const { status } = this.kernel;
    if (GONE.includes(status)) {
      this._close();
      this.state.lose();
      this._kernelVersion = null;
      this._setStatus('gone');
    } else if (this._status === 'gone' || this._status === 'waiting') {
      this._openIn(BACK_MS);
    }
    // Whether a cell runs is shown with the controls.
    this._changed.emit();
  }

  /** After a lost connection the comms are opened anew, for a new snapshot. */
  private _onConnectionStatus(): void {
    if (this.kernel.connectionStatus === 'connected') {
      this._close();
      this._open();
    } else if (this._status === 'connected') {
      this._sender?.close();
      this._sender = null;
      this._setStatus('waiting');
    }
  }

  private _retrySoon(): void {
    if (this._status === 'absent') {
      this._openIn(SOON_MS);
    }
  }

  private _openIn(ms: number): void {
    this._timer ??= setTimeout(() => {
      this._timer = undefined;
      this._open();
    }, ms);
  }

  private _setStatus(status: ConnectionStatus): void {
    this._status = status;
    this._changed.emit();
  }

  private readonly _cells: LoadingCells;
  private readonly _changed = new Signal<this, void>(this);
  private _status: ConnectionStatus = 'waiting';
  private _attempt: Attempt | null = null;
  private _sender: CommandSender | null = null;
  private _kernelVersion: number | null = null;
  private _timer: ReturnType<typeof setTimeout> | undefined;
  /** A cell has ended since the kernel was asked. */
  private _executed = false;
  private _isDisposed = false;
}
