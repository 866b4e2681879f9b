// Generated from jupyter_dtrain/protocol.py by labextension/scripts/protocol_types.py: do not edit.
// To write it again: python labextension/scripts/protocol_types.py

/**
 * Events and commands: everything that crosses a process boundary while a run
 * goes on, defined once.
 *
 * Three roads use these types. Engines send *events* to the notebook kernel
 * (over ipyparallel's IOPub channel, in batches); the kernel sends *updates* to
 * JupyterLab (over the telemetry comm) and gets *commands* back (over the
 * command comm). Each message is a frozen dataclass; on the wire it is a JSON
 * object whose `type` names the class in snake case.
 * `labextension/src/protocol.ts` is generated from this file, and a test fails
 * when they differ.
 *
 * Columns (lists of equal length) rather than rows carry what comes many times
 * a second: one step is then a few numbers and not a few objects.
 */

export const PROTOCOL_VERSION = 1;
export const TELEMETRY_TARGET = 'jupyter_dtrain:telemetry';
export const COMMAND_TARGET = 'jupyter_dtrain:commands';

/**
 * The values of `ClusterPhase`.
 */
export type ClusterPhase = 'stopped' | 'starting' | 'running' | 'stopping';

/**
 * The values of `RunPhase`.
 */
export type RunPhase =
  'starting' | 'running' | 'stopping' | 'finished' | 'stopped' | 'failed';

/**
 * The values of `CommandName`.
 */
export type CommandName = 'stop_run' | 'start_cluster' | 'stop_cluster';

/**
 * A message inside another one: the field that holds it says what it is, so it
 * has no `type`.
 */
export type Nested<T extends { type: string }> = Omit<T, 'type'>;

/**
 * A rank has joined the run.
 *
 * `device` is torch's name of the device (`"cpu"`, `"cuda:0"`), `device_name`
 * the hardware's own.
 */
export interface IRankStarted {
  type: 'rank_started';
  rank: number;
  world_size: number;
  host: string;
  pid: number;
  device: string;
  device_name: string;
}

/**
 * Optimizer steps that one rank finished since its last message: columns of
 * equal length.
 *
 * `loss` is the rank's own loss, a mean over its `samples`; `null` where no
 * loss was seen. The mean over the global batch is the mean over ranks weighted
 * by `weight`, the rank's part of the global batch (the weights of one step add
 * up to 1). `time` is in seconds since the epoch. `samples` counts the rank's
 * own samples.
 */
export interface ISteps {
  type: 'steps';
  rank: number;
  step: number[];
  time: number[];
  loss: (number | null)[];
  weight: number[];
  learning_rate: (number | null)[];
  samples: number[];
}

/**
 * Where rank 0 is in its training loader: `batch` of `batches` (`null`:
 * unknown) in pass `epoch`, both from 1.
 */
export interface IProgress {
  type: 'progress';
  rank: number;
  epoch: number;
  batch: number;
  batches: number | null;
}

/**
 * How busy a rank's device is, at `time` seconds since the epoch.
 *
 * `utilization` is in percent of the device (on CPU: of the cores that the
 * engine may use), memory in bytes (on CPU: of the engine's process and of the
 * host).
 */
export interface IDeviceUse {
  type: 'device_use';
  rank: number;
  time: number;
  utilization: number;
  memory_used: number;
  memory_total: number;
}

/**
 * Values that the cell logged by name (`dtrain.log`): columns of equal length.
 */
export interface IScalars {
  type: 'scalars';
  rank: number;
  name: string;
  step: number[];
  time: number[];
  value: number[];
}

/**
 * One line for the user about what was done with the cell (a loader that was
 * not split, and why).
 */
export interface INotice {
  type: 'notice';
  rank: number;
  text: string;
}

/**
 * One engine as the sidebar lists it. `rank` is its place in the cluster.
 */
export interface IEngineInfo {
  type: 'engine_info';
  rank: number;
  host: string;
  pid: number;
  device: string;
  device_name: string;
}

/**
 * The cluster as it is now. `detail` is a short sentence while something is
 * under way or went wrong.
 */
export interface IClusterUpdate {
  type: 'cluster_update';
  phase: ClusterPhase;
  engines: Nested<IEngineInfo>[];
  detail: string;
}

/**
 * The current or last run as it is now. Times in seconds (`started` since the
 * epoch), `null`: not known (yet).
 *
 * `loss` is the last step's, `null` too where it was not finite.
 * `samples_per_second` counts all ranks: over the last few seconds, and over
 * all steps once the run has ended.
 */
export interface IRunUpdate {
  type: 'run_update';
  run_id: string;
  name: string;
  phase: RunPhase;
  world_size: number;
  started: number;
  elapsed: number;
  step: number;
  epoch: number | null;
  batch: number | null;
  batches: number | null;
  loss: number | null;
  learning_rate: number | null;
  samples_per_second: number | null;
  error: string | null;
}

/**
 * New points of one curve of a run: columns of equal length. `time` in seconds
 * since the epoch.
 *
 * `value` is `null` where it was not finite (nan, inf), which JSON cannot say:
 * a gap in the curve.
 */
export interface IPoints {
  type: 'points';
  run_id: string;
  name: string;
  step: number[];
  time: number[];
  value: (number | null)[];
}

/**
 * Everything a view needs when it opens or reloads: the state so far, then
 * updates follow.
 */
export interface ISnapshot {
  type: 'snapshot';
  version: number;
  cluster: Nested<IClusterUpdate>;
  run: Nested<IRunUpdate> | null;
  points: Nested<IPoints>[];
  devices: Nested<IDeviceUse>[];
  notices: Nested<INotice>[];
}

/**
 * The answer to the command with this `id`. `message` says what was done, or
 * why it was not.
 */
export interface IReply {
  type: 'reply';
  id: string;
  ok: boolean;
  message: string;
}

/**
 * A control that was used. `num_engines` belongs to `start_cluster` (`null`: as
 * many as there are devices).
 */
export interface ICommand {
  type: 'command';
  id: string;
  name: CommandName;
  num_engines?: number | null;
}

/**
 * What an engine sends to the kernel.
 */
export type EngineEvent =
  IRankStarted | ISteps | IProgress | IDeviceUse | IScalars | INotice;

/**
 * What the kernel sends on the telemetry comm.
 */
export type Update =
  ISnapshot | IClusterUpdate | IRunUpdate | IPoints | IDeviceUse | INotice;

/**
 * The data of one comm message on the telemetry comm.
 */
export interface IBatch {
  messages: Update[];
}

/**
 * The phases after which a run changes no more.
 */
export const RUN_PHASES_ENDED: readonly RunPhase[] = [
  'finished',
  'stopped',
  'failed'
];
