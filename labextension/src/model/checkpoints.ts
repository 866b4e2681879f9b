/** The checkpoints of one run on disk, as the kernel lists them. */

import { Signal, type ISignal } from '@lumino/signaling';
import type { CommandName, ICheckpointInfo, IReply, Nested } from '../protocol';
import type { Ask } from './details';

export type Checkpoint = Nested<ICheckpointInfo>;

export class Checkpoints {
  constructor(private readonly _ask: Ask) {}

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The run that they belong to, once they were asked for. */
  get runId(): string | null {
    return this._runId;
  }

  /** The newest first; `null` before they are there. */
  get list(): readonly Checkpoint[] | null {
    return this._list;
  }

  /** What is free on their disk, in bytes. */
  get freeBytes(): number | null {
    return this._freeBytes;
  }

  /** What went wrong with the last question, in the kernel's words. */
  get error(): string | null {
    return this._error;
  }

  /** What the kernel said to the last thing that was asked of it. */
  get answer(): string | null {
    return this._answer;
  }

  /** Whether something is being done with one of them. */
  get busy(): boolean {
    return this._busy;
  }

  /** The best by the run's metric; else that with the least loss, where there are several to choose from. */
  get best(): Checkpoint | null {
    const measured = (this._list ?? []).find(({ best }) => best);
    if (measured !== undefined) {
      return measured;
    }
    const known = (this._list ?? []).filter(({ loss }) => loss !== null);
    const least = (a: Checkpoint, b: Checkpoint): Checkpoint =>
      (b.loss ?? Infinity) < (a.loss ?? Infinity) ? b : a;
    return known.length > 1 ? known.reduce(least) : null;
  }

  /** Fetch the list of a run's checkpoints. */
  async refresh(runId: string): Promise<void> {
    if (runId !== this._runId) {
      this._runId = runId;
      this._list = this._freeBytes = this._answer = this._error = null;
      this._changed.emit();
    }
    try {
      const reply = await this._ask('list_checkpoints', { run_id: runId });
      if (this._runId === runId) {
        this._list = reply.checkpoints;
        this._freeBytes = reply.free_bytes;
        this._changed.emit();
      }
    } catch (error) {
      if (this._runId === runId) {
        this._fail(error);
      }
    }
  }

  /** Keep one until it is deleted, or only while it is among the last. */
  pin(checkpoint: Checkpoint, pinned: boolean): Promise<void> {
    return this._do('pin_checkpoint', checkpoint, { pinned });
  }

  delete(checkpoint: Checkpoint): Promise<void> {
    return this._do('delete_checkpoint', checkpoint);
  }

  /** Write the models of one as files for other programs. */
  export(checkpoint: Checkpoint): Promise<void> {
    return this._do('export_checkpoint', checkpoint);
  }

  private async _do(
    name: CommandName,
    { run_id, step }: Checkpoint,
    options: { pinned?: boolean } = {}
  ): Promise<void> {
    this._busy = true;
    this._error = this._answer = null;
    this._changed.emit();
    let reply: IReply | null = null;
    try {
      reply = await this._ask(name, { run_id, step, ...options });
    } catch (error) {
      this._fail(error);
    }
    this._busy = false;
    await this.refresh(run_id);
    this._answer = reply?.message ?? null;
    this._changed.emit();
  }

  private _fail(error: unknown): void {
    this._error = error instanceof Error ? error.message : String(error);
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private _runId: string | null = null;
  private _list: readonly Checkpoint[] | null = null;
  private _freeBytes: number | null = null;
  private _error: string | null = null;
  private _answer: string | null = null;
  private _busy = false;
}
