/** A kernel with the parts that the model uses, and recorded updates. */

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { PromiseDelegate, type JSONObject } from '@lumino/coreutils';
import { Signal } from '@lumino/signaling';
import type { KernelLink } from '../src/model/comm';
import { TrainingState } from '../src/model/state';
import type { Update } from '../src/protocol';

type Status = KernelLink['status'];

/** Read the updates of a recording, which a Python test checks as well. */
export function recorded(name: string): Update[] {
  // The tests run from the repository's root.
  const path = join(process.cwd(), 'tests', 'recorded', `${name}.json`);
  return JSON.parse(readFileSync(path, 'utf-8')) as Update[];
}

/** Return the state after a recording, or after the first of its updates. */
export function play(name: string, until?: number): TrainingState {
  const state = new TrainingState();
  for (const update of recorded(name).slice(0, until)) {
    state.apply(update, 1000);
  }
  return state;
}

/** Let promises and the timers that are due go on. */
export async function settle(): Promise<void> {
  for (let i = 0; i < 20; i++) {
    await Promise.resolve();
  }
}

export class FakeComm {
  constructor(
    readonly targetName: string,
    readonly commId: string,
    readonly subshellId: string | null
  ) {}

  readonly commsOverSubshells = 'perCommTarget';
  readonly started = new PromiseDelegate<void>();
  readonly subshellStarted = this.started.promise;
  readonly sent: JSONObject[] = [];
  opened = false;
  isDisposed = false;
  onMsg: (message: { content: { data: unknown } }) => void = ignore;
  onClose: () => void = ignore;

  dispose(): void {
    this.isDisposed = true;
  }

  /** The kernel closes the comm. */
  closedByKernel(): void {
    this.onClose();
    this.dispose();
  }

  /** The kernel sends updates. */
  receive(...messages: Update[]): void {
    this.onMsg({ content: { data: { messages } } });
  }

  /** The kernel answers the newest command. */
  reply(ok: boolean, message: string): void {
    const id = this.sent[this.sent.length - 1]?.id;
    this.onMsg({ content: { data: { type: 'reply', id, ok, message } } });
  }
}

/** Build one with `new`, use it as a kernel through `link`. */
export class FakeKernel {
  readonly statusChanged = new Signal<this, Status>(this);
  readonly connectionStatusChanged = new Signal<this, string>(this);
  readonly iopubMessage = new Signal<this, unknown>(this);
  readonly disposed = new Signal<this, void>(this);
  readonly comms: FakeComm[] = [];
  readonly controlMessages: string[] = [];
  readonly shellMessages: { type: string; subshell: unknown }[] = [];
  readonly clientId = 'client';
  readonly username = '';
  status: Status = 'idle';
  connectionStatus = 'connected';
  isDisposed = false;
  interrupts = 0;
  supportsSubshells = true;
  language = 'python';
  info: Promise<unknown> = Promise.resolve({});

  get link(): KernelLink {
    return this as unknown as KernelLink;
  }

  get spec(): Promise<{ language: string }> {
    return Promise.resolve({ language: this.language });
  }

  createComm(target: string): FakeComm {
    const count = this.comms.length + 1;
    const comm = new FakeComm(
      target,
      `comm-${count}`,
      this.supportsSubshells ? `${target}-subshell` : null
    );
    if (this.subshells) {
      comm.started.resolve();
    }
    this.comms.push(comm);
    return comm;
  }

  sendControlMessage(message: { header: { msg_type: string } }): unknown {
    this.controlMessages.push(message.header.msg_type);
    const reply = { content: { subshell_id: 'own-subshell' } };
    return { done: Promise.resolve(reply) };
  }

  sendShellMessage(message: {
    header: { msg_type: string; subshell_id?: unknown };
    content: { comm_id: string; data: JSONObject };
  }): unknown {
    const { msg_type: type, subshell_id: subshell } = message.header;
    const { comm_id, data } = message.content;
    const comm = this.comms.find(one => one.commId === comm_id);
    this.shellMessages.push({ type, subshell });
    if (comm !== undefined && type === 'comm_open') {
      comm.opened = true;
    } else if (comm !== undefined && type === 'comm_msg') {
      comm.sent.push(data);
    }
    return { done: Promise.resolve() };
  }

  interrupt(): Promise<void> {
    this.interrupts += 1;
    return Promise.resolve();
  }

  /** The newest comm to a target. */
  comm(target: string): FakeComm {
    const found = this.comms.filter(comm => comm.targetName === target).pop();
    if (found === undefined) {
      throw new Error(`no comm to ${target} was made`);
    }
    return found;
  }

  become(status: Status): void {
    this.status = status;
    this.statusChanged.emit(status);
  }

  connect(status: string): void {
    this.connectionStatus = status;
    this.connectionStatusChanged.emit(status);
  }

  /** A cell runs from start to end. */
  execute(code: string): void {
    this.begin(code)();
  }

  /** A cell begins; returns what ends it. */
  begin(code: string): () => void {
    const cell = { msg_id: `cell ${++this._numCells}` };
    this._tell('busy', cell);
    this.iopubMessage.emit({
      header: { msg_type: 'execute_input' },
      parent_header: cell,
      content: { code }
    });
    return () => {
      this._tell('idle', cell);
    };
  }

  /** The kernel has answered on a subshell, where it is idle then. */
  answerOnSubshell(): void {
    this._tell('idle', { msg_id: 'a comm' });
  }

  private _tell(status: 'busy' | 'idle', parent: { msg_id: string }): void {
    this.become(status);
    this.iopubMessage.emit({
      header: { msg_type: 'status' },
      parent_header: parent,
      content: { execution_state: status }
    });
  }

  private _numCells = 0;

  /** Whether subshells start at once. */
  subshells = true;
}

function ignore(): void {
  // Nobody listens.
}
