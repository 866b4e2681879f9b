/**
 * Sends commands to the kernel and waits for their answers.
 *
 * Each command carries an id that its reply repeats. A command that gets no
 * reply in time fails with a sentence that says what else to try, because the
 * user who pressed Stop is waiting.
 */

import type { JSONObject } from '@lumino/coreutils';
import type { CommandName, ICommand, IReply } from '../protocol';
import { becomesIdle, type KernelLink } from './comm';

/** How long the kernel may take to answer a command. */
const REPLY_MS = 10_000;
/** How long it may be busy with another message. */
const MOMENT_MS = 1000;

/** Why a command did not do what it was to do. */
export class CommandError extends Error {
  constructor(
    /**
     * `refused` by the kernel, no reply (`silent`), the comm `closed`, or not
     * sent, because the kernel would answer after its cell (`deaf`).
     */
    readonly reason: 'refused' | 'silent' | 'closed' | 'deaf',
    message: string
  ) {
    super(message);
  }
}

/**
 * Wait for the end of other messages, with each of which a kernel without
 * subshells is busy for a moment; rejects where it is so for longer: by a cell.
 */
export async function heard(kernel: KernelLink): Promise<void> {
  if (!(await becomesIdle(kernel, MOMENT_MS))) {
    throw new CommandError('deaf', 'This kernel answers after the cell.');
  }
}

interface IWaiting {
  resolve: (reply: IReply) => void;
  reject: (error: CommandError) => void;
  timer: ReturnType<typeof setTimeout>;
}

export class CommandSender {
  constructor(
    /** Puts a command on the comm. */
    private readonly _send: (data: JSONObject) => void,
    private readonly _replyMs: number = REPLY_MS,
    /** Whether the kernel answers while a cell runs. */
    readonly onSubshell = true
  ) {}

  /** Send a command; resolves with the kernel's answer to it. */
  send(
    name: CommandName,
    options: Omit<Partial<ICommand>, 'type' | 'id' | 'name'> = {}
  ): Promise<IReply> {
    this._count += 1;
    const command = {
      ...options,
      type: 'command',
      id: `${name}-${this._count}`,
      name
    } satisfies ICommand;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this._settle(command.id)?.reject(
          new CommandError('silent', `no reply in ${this._replyMs / 1000} s`)
        );
      }, this._replyMs);
      this._waiting.set(command.id, { resolve, reject, timer });
      this._send(command);
    });
  }

  /** Take a reply; one that nobody waits for is dropped. */
  receive(reply: IReply): void {
    const waiting = this._settle(reply.id);
    if (reply.ok) {
      waiting?.resolve(reply);
    } else {
      waiting?.reject(new CommandError('refused', reply.message));
    }
  }

  /** The comm is gone: nothing will be answered any more. */
  close(): void {
    for (const id of [...this._waiting.keys()]) {
      this._settle(id)?.reject(new CommandError('closed', 'connection closed'));
    }
  }

  private _settle(id: string): IWaiting | undefined {
    const waiting = this._waiting.get(id);
    if (waiting !== undefined) {
      clearTimeout(waiting.timer);
      this._waiting.delete(id);
    }
    return waiting;
  }

  private readonly _waiting = new Map<string, IWaiting>();
  private _count = 0;
}
