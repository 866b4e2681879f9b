/**
 * What the user can do to a kernel's run and cluster, and why not.
 *
 * Reasons are codes, not sentences: the views translate them.
 */

import { Signal, type ISignal } from '@lumino/signaling';
import type { CommandName } from '../protocol';
import { CommandError } from './commands';
import type { Connection, ConnectionStatus } from './connection';

/** Why a control cannot act now. */
export type Obstacle =
  | Exclude<ConnectionStatus, 'connected'>
  | 'no-run'
  | 'run-ended'
  | 'run-stopping'
  | 'run-active'
  | 'cluster-changing'
  | 'cluster-running'
  | 'cluster-stopped'
  | 'sent';

/** A command that did not do what it was to do. */
export interface IFailure {
  command: CommandName;
  reason: CommandError['reason'];
  message: string;
  /** Whether a cell was running: it may be what kept the kernel from answering. */
  busy: boolean;
}

export class Controls {
  constructor(private readonly _connection: Connection) {}

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The last command that failed, until the next one is sent. */
  get failure(): IFailure | null {
    return this._failure;
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
    if (command === 'stop_run' && state.run !== null && !state.running) {
      return 'run-ended'; // whatever became of its kernel
    }
    if (status !== 'connected') {
      return status;
    }
    if (!canCommand) {
      return 'waiting';
    }
    return command === 'stop_run'
      ? this._stopRunObstacle()
      : this._clusterObstacle(command);
  }

  /** Send a command. It never rejects: `failure` says what went wrong. */
  async send(command: CommandName, numEngines?: number | null): Promise<void> {
    if (this.obstacle(command) !== null) {
      return;
    }
    const runId = this._connection.state.run?.run_id ?? null;
    this._failure = null;
    this._pending.add(command);
    this._changed.emit();
    try {
      await this._connection.send(command, {
        num_engines: numEngines ?? null
      });
      if (command === 'stop_run') {
        this._stopAccepted = runId;
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

  private _stopRunObstacle(): Obstacle | null {
    if (this._connection.state.run === null) {
      return 'no-run';
    }
    return this.stopping ? 'run-stopping' : null;
  }

  private _clusterObstacle(command: CommandName): Obstacle | null {
    const { cluster, running } = this._connection.state;
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
        return running ? 'run-active' : null;
      case 'stopped':
        return command === 'stop_cluster' ? 'cluster-stopped' : null;
    }
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _pending = new Set<CommandName>();
  private _failure: IFailure | null = null;
  private _stopAccepted: string | null = null;
}
