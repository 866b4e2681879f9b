/**
 * What the user can do to a kernel's run and cluster, and why not.
 *
 * Reasons are codes, not sentences: the views translate them.
 */

import { Signal, type ISignal } from '@lumino/signaling';
import type { CommandName, ICommand } from '../protocol';
import { CommandError } from './commands';
import type { Connection, ConnectionStatus } from './connection';

/** Why a control cannot act now. */
export type Obstacle =
  | Exclude<ConnectionStatus, 'connected'>
  | 'no-run'
  | 'run-ended'
  | 'run-alone'
  | 'run-stopping'
  | 'run-pausing'
  | 'run-paused'
  | 'run-not-paused'
  | 'run-active'
  | 'trials'
  | 'cluster-changing'
  | 'cluster-running'
  | 'cluster-stopped'
  | 'kernel-busy'
  | 'sent';

/** Commands about the run that is going on. */
export const RUN_COMMANDS: readonly CommandName[] = [
  'stop_run',
  'pause_run',
  'resume_run',
  'checkpoint_now',
  'roll_back'
];

/** What the kernel says to a command that it has accepted. */
export interface IAnswer {
  command: CommandName;
  message: string;
  /** The step of what was asked for, once that has happened: a checkpoint is on disk, the run has gone back to one. */
  done: number | null;
}

/** A command that did not do what it was to do. */
export interface IFailure {
  command: CommandName;
  reason: CommandError['reason'];
  message: string;
  /** Whether a cell was running: it may be what kept the kernel from answering. */
  busy: boolean;
}

/** What buttons need to know: of the sidebar's, and of those in the cell. */
export type RunControls = Pick<
  Controls,
  'changed' | 'failure' | 'obstacle' | 'pausing' | 'send' | 'stopping'
>;

export class Controls {
  constructor(private readonly _connection: Connection) {
    _connection.changed.connect(this._follow, this);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The last command that failed, until the next one is sent. */
  get failure(): IFailure | null {
    return this._failure;
  }

  /** What the kernel said to the last command, until the next one is sent. */
  get answer(): IAnswer | null {
    return this._answer;
  }

  /** Whether the run has been told to pause and has not yet done so. */
  get pausing(): boolean {
    const { run } = this._connection.state;
    return (
      run?.phase === 'running' &&
      (this._pending.has('pause_run') || this._pauseAccepted === run.run_id)
    );
  }

  /** Whether the run has been told to stop and has not ended yet. */
  get stopping(): boolean {
    const { run, running } = this._connection.state;
    return (
      running &&
      (run?.phase === 'stopping' ||
        this._pending.has('stop_run') ||
        this._stopAccepted === run?.run_id)
    );
  }

  /** Why `command` cannot be sent now; `null`: it can. */
  obstacle(command: CommandName): Obstacle | null {
    const { status, canCommand, state } = this._connection;
    const aboutRun = RUN_COMMANDS.includes(command);
    if (aboutRun && state.run !== null && !state.running) {
      // Whatever became of its kernel.
      return state.run.phase === 'alone' ? 'run-alone' : 'run-ended';
    }
    if (status !== 'connected') {
      return status;
    }
    if (!canCommand) {
      return 'waiting';
    }
    if (this._connection.deaf && command !== 'stop_run') {
      return 'kernel-busy';
    }
    return aboutRun
      ? this._runObstacle(command)
      : this._clusterObstacle(command);
  }

  /** Send a command. It never rejects: `failure` says what went wrong. */
  async send(
    command: CommandName,
    options: Partial<ICommand> = {}
  ): Promise<void> {
    if (this.obstacle(command) !== null) {
      return;
    }
    const { run } = this._connection.state;
    const runId = run?.run_id ?? null;
    this._before = {
      step: run?.step ?? 0,
      checkpoint: run?.checkpoint ?? null
    };
    this._failure = null;
    this._answer = null;
    this._pending.add(command);
    this._changed.emit();
    try {
      const reply = await this._connection.send(command, options);
      this._answer =
        reply === null ? null : { command, message: reply.message, done: null };
      this._follow(); // it may have happened before the answer came
      if (command === 'stop_run') {
        this._stopAccepted = runId;
      } else if (command === 'pause_run') {
        this._pauseAccepted = runId;
      } else if (command === 'resume_run') {
        this._pauseAccepted = null;
      }
    } catch (error) {
      this._failure = {
        command,
        reason: error instanceof CommandError ? error.reason : 'closed',
        message: error instanceof Error ? error.message : String(error),
        busy: this._connection.busy
      };
    } finally {
      this._pending.delete(command);
      this._changed.emit();
    }
  }

  /** Look whether what was asked for has happened. */
  private _follow(): void {
    const { run } = this._connection.state;
    const { _answer: answer, _before: before } = this;
    if (run === null || answer?.done !== null) {
      return;
    }
    if (answer.command === 'checkpoint_now') {
      answer.done =
        run.checkpoint === before.checkpoint ? null : run.checkpoint;
    } else if (answer.command === 'roll_back' && run.step < before.step) {
      answer.done = run.step;
    }
    before.step = Math.max(before.step, run.step);
  }

  private _runObstacle(command: CommandName): Obstacle | null {
    const { run } = this._connection.state;
    if (run === null) {
      return 'no-run';
    }
    if (this.stopping) {
      return 'run-stopping';
    }
    if (command !== 'stop_run' && this._connection.state.trialCount !== null) {
      return 'trials';
    }
    switch (command) {
      case 'pause_run':
        return run.phase === 'paused'
          ? 'run-paused'
          : this.pausing
            ? 'run-pausing'
            : null;
      case 'resume_run':
        return run.phase === 'paused' ? null : 'run-not-paused';
      default:
        return null;
    }
  }

  private _clusterObstacle(command: CommandName): Obstacle | null {
    const { cluster, running } = this._connection.state;
    if (command === 'stop_trial') {
      return running ? null : 'run-ended';
    }
    if (this._pending.has(command)) {
      return 'sent';
    }
    switch (cluster.phase) {
      case 'starting':
      case 'stopping':
        return 'cluster-changing';
      case 'running':
        if (command === 'start_cluster') {
          return 'cluster-running';
        }
        if (command === 'restart_engine') {
          return this.stopping ? 'run-stopping' : null;
        }
        return running ? 'run-active' : null;
      case 'stopped':
        return command === 'start_cluster' ? null : 'cluster-stopped';
    }
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _pending = new Set<CommandName>();
  private _failure: IFailure | null = null;
  private _answer: IAnswer | null = null;
  /** Where the run was when the last command was sent, or later. */
  private _before: { step: number; checkpoint: number | null } = {
    step: 0,
    checkpoint: null
  };
  private _stopAccepted: string | null = null;
  private _pauseAccepted: string | null = null;
}
