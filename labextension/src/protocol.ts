// Generated from jupyter_dtrain/protocol by labextension/scripts/protocol_types.py: do not edit.
// To write it again: python labextension/scripts/protocol_types.py

/**
 * Events, orders, updates and commands: everything that crosses a process
 * boundary while a run goes on, defined once.
 *
 * Four roads use these types. Engines send *events* to the notebook's kernel
 * (over ipyparallel's IOPub channel, in batches), which sends them *orders*
 * (over the control channel). The kernel sends *updates* to JupyterLab (over
 * the telemetry comm) and gets *commands* back (over the command comm). Each
 * message is a frozen dataclass; on the wire it is a JSON object whose `type`
 * names the class in snake case. `labextension/src/protocol.ts` is generated
 * from this package, and a test fails when they differ.
 *
 * Columns (lists of equal length) rather than rows carry what comes many times
 * a second: one step is then a few numbers and not a few objects.
 */

export const PROTOCOL_VERSION = 2;
export const TELEMETRY_TARGET = 'jupyter_dtrain:telemetry';
export const COMMAND_TARGET = 'jupyter_dtrain:commands';
export const RECORD_TARGET = 'jupyter_dtrain:record';
export const WIDGET_MODULE = 'jupyter-dtrain';

/**
 * The values of `ClusterPhase`.
 */
export type ClusterPhase = 'stopped' | 'starting' | 'running' | 'stopping';

/**
 * The values of `RunPhase`.
 */
export type RunPhase =
  | 'starting'
  | 'running'
  | 'paused'
  | 'stopping'
  | 'finished'
  | 'stopped'
  | 'pruned'
  | 'failed';

/**
 * The values of `CommandName`.
 */
export type CommandName =
  | 'stop_run'
  | 'stop_trial'
  | 'pause_run'
  | 'resume_run'
  | 'checkpoint_now'
  | 'roll_back'
  | 'start_cluster'
  | 'stop_cluster'
  | 'restart_engine'
  | 'list_runs'
  | 'get_curves'
  | 'get_output'
  | 'compare_runs'
  | 'find_cell'
  | 'share_run'
  | 'rename_run'
  | 'tag_run'
  | 'delete_run'
  | 'list_checkpoints'
  | 'pin_checkpoint'
  | 'delete_checkpoint'
  | 'export_checkpoint';

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
 *
 * `step` is the number of optimizer steps that were finished when the batch was
 * drawn.
 */
export interface IProgress {
  type: 'progress';
  rank: number;
  epoch: number;
  batch: number;
  batches: number | null;
  step: number;
}

/**
 * Which `fraction` of the loops around the cell's steps was done at `time`
 * seconds since the epoch. Told where they have a length.
 */
export interface IExtent {
  type: 'extent';
  rank: number;
  time: number;
  fraction: number;
}

/**
 * How busy a rank's device is, at `time` seconds since the epoch.
 *
 * `utilization` is in percent of the device (on CPU: of the cores that the
 * engine may use), memory in bytes (on CPU: of the engine's processes, what
 * they share counted once, and of the host). `temperature` is in degrees
 * Celsius and `power` in watts, `null` where the device does not tell.
 */
export interface IDeviceUse {
  type: 'device_use';
  rank: number;
  time: number;
  utilization: number;
  memory_used: number;
  memory_total: number;
  temperature: number | null;
  power: number | null;
}

/**
 * Where the time of one rank has gone since the cell began, in seconds by part:
 * together they are all of it.
 *
 * `data` was spent waiting for batches, `communication` waiting for other ranks
 * or for what they send, `other` in the cell's own code between the parts.
 * `step` is the number of steps finished. `num_workers` is that of the loader
 * whose batch came last, `null` before the first.
 *
 * Of data sets of this project (`jupyter_dtrain.data`) it has the `rows` that
 * they gave and the `bytes_read` for them, and how many seconds all threads and
 * workers were busy with `files`, with computing `partitions`, with `decoding`
 * and with `transforms` of samples: they are no parts of the time, as they go
 * on beside it.
 *
 * `busiest_line` of `busiest_file` takes most of `other`, and `busiest_code` is
 * what it says; line 0: none stands out.
 */
export interface ITimeSplit {
  type: 'time_split';
  rank: number;
  step: number;
  data: number;
  forward: number;
  backward: number;
  communication: number;
  optimizer: number;
  other: number;
  num_workers: number | null;
  rows: number;
  bytes_read: number;
  files: number;
  partitions: number;
  decoding: number;
  transforms: number;
  busiest_file: string;
  busiest_line: number;
  busiest_code: string;
}

/**
 * Values that the cell logged by name (`dtrain.log`): columns of equal length.
 *
 * `first` is the number of the first of them among all of this name, from 0: a
 * run that goes on from a snapshot tells some again.
 */
export interface IScalars {
  type: 'scalars';
  rank: number;
  name: string;
  first: number;
  step: number[];
  time: number[];
  value: number[];
}

/**
 * Hyperparameters of the cell by name, told by rank 0 when they are first
 * known.
 *
 * What was found in the cell's objects counts when it is told first: later they
 * may have changed, as a scheduler's learning rate. What the cell has `given`
 * by name (`dtrain.config`) replaces what was there.
 */
export interface IHyperparameters {
  type: 'hyperparameters';
  rank: number;
  values: Record<string, string | number | boolean | null>;
  given: boolean;
}

/**
 * A rank has written its part of snapshot `number`, after `step` steps, at
 * `place` in the cell.
 *
 * It took `seconds` of the rank's time, in its step and of the processor beside
 * it; `keys` are the buffers that it refers to. The snapshot counts when all
 * ranks have written theirs at one step and place; an empty `place` says that
 * it could not be written. Nobody has to ask for it where `best` is the metric
 * of `--best`, which has never been better, or `at_multiple` says that it is
 * the first after a multiple of the steps of `--checkpoint-every`.
 */
export interface ISnapshotTaken {
  type: 'snapshot_taken';
  rank: number;
  number: number;
  step: number;
  place: string;
  seconds: number;
  keys: string[];
  best: number | null;
  at_multiple: boolean;
}

/**
 * A rank's snapshots will take about `seconds` each, as its state is large.
 * Told once, after the first step.
 */
export interface IStateSize {
  type: 'state_size';
  rank: number;
  seconds: number;
}

/**
 * A rank waits, after `step` steps, in pause `number` of the run. The run is
 * paused when all do.
 */
export interface IPaused {
  type: 'paused';
  rank: number;
  number: number;
  step: number;
}

/**
 * Where a rank is: the user's `line` of `filename`, in `function`; 0 at the end
 * of the cell. `waiting`: for the other ranks.
 */
export interface IStanding {
  type: 'standing';
  rank: number;
  filename: string;
  line: number;
  function: string;
  waiting: boolean;
}

/**
 * A rank takes home what the cell has made, and is to be left in peace for
 * `seconds` more. Told again and again meanwhile.
 */
export interface IHomeward {
  type: 'homeward';
  rank: number;
  seconds: number;
}

/**
 * A rank that fails has left what it alone keeps of optimizers in the file
 * `name` beside its snapshots, for rank 0 on another host.
 */
export interface IShardLeft {
  type: 'shard_left';
  rank: number;
  name: string;
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
 *
 * `lost_hosts` are those that engines were to be on and cannot be any more;
 * their ranks are on others, until another cluster starts.
 */
export interface IClusterUpdate {
  type: 'cluster_update';
  phase: ClusterPhase;
  engines: Nested<IEngineInfo>[];
  lost_hosts: string[];
  detail: string;
}

/**
 * The current or last run as it is now. Times in seconds (`started` since the
 * epoch), `null`: not known (yet).
 *
 * `loss` is the last step's. Where it was not finite, which JSON cannot say, it
 * is `null`, and `odd_loss` is its text: `nan`, `inf`. `samples_per_second`
 * counts all ranks: over the last few seconds, and over all steps once the run
 * has ended. So do `rows_per_second` and `bytes_per_second`, of what data sets
 * of this project have given and read; `null` where there is none. `fraction`
 * of the loops around its steps is done, and the rest takes the `remaining`
 * seconds at the recent speed: an estimate, which knows of no `break`.
 * `checkpoint` is the step of the last one that was written to disk: what a run
 * goes on from whose kernel has ended. A `detached` run goes on without the
 * kernel.
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
  odd_loss: string | null;
  learning_rate: number | null;
  samples_per_second: number | null;
  rows_per_second: number | null;
  bytes_per_second: number | null;
  fraction: number | null;
  remaining: number | null;
  checkpoint: number | null;
  detached: boolean;
  error: string | null;
}

/**
 * New points of one curve of a run: columns of equal length. `time` in seconds
 * since the epoch.
 *
 * `value` is `null` where it was not finite (nan, inf), which JSON cannot say:
 * a gap in the curve. `thinned` says that points were left out between those of
 * the curve so far: `get_curves` has them.
 */
export interface IPoints {
  type: 'points';
  run_id: string;
  name: string;
  step: number[];
  time: number[];
  value: (number | null)[];
  thinned: boolean;
}

/**
 * A run that is one of a cell's trials. `started` is in seconds since the
 * epoch, `elapsed` are seconds until now or its end.
 *
 * One that a search has stopped early counts as `pruned_at` a step: what it
 * trained beyond that is taken back.
 */
export interface ITrialRun {
  type: 'trial_run';
  run_id: string;
  name: string;
  started: number;
  phase: RunPhase;
  elapsed: number;
  pruned_at: number | null;
}

/**
 * All trials of the cell that have begun, in that order: their curves are told
 * as well, beside those of the run that is shown.
 *
 * `total` counts those that have not begun too. `over`: nothing more comes of
 * any.
 */
export interface ITrialRuns {
  type: 'trial_runs';
  runs: Nested<ITrialRun>[];
  total: number;
  over: boolean;
}

/**
 * A run of the notebook's folder that no kernel follows: it goes on, or has
 * `ended` and its results wait for a kernel.
 */
export interface IDetachedRun {
  type: 'detached_run';
  run_id: string;
  ended: boolean;
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
  times: Nested<ITimeSplit>[];
  notices: Nested<INotice>[];
  trials: Nested<ITrialRuns> | null;
  detached: Nested<IDetachedRun>[];
}

/**
 * A control that was used, or a question about past runs.
 *
 * `num_engines` belongs to `start_cluster` (`null`: as many as there are
 * devices), `rank` to `restart_engine` and to `get_output`, which returns what
 * that rank has printed. `run_id` names the run that a command is about,
 * `other_run_id` the later one of `compare_runs`. `get_curves` returns all
 * curves but those of devices, these where `curve` is `device/`, or the one
 * called `curve`, from step `first` to step `last`, of at most `limit` points
 * each. `text` is the new name, or the tags with commas between them. `step`
 * names a checkpoint of the run, which `pin_checkpoint` keeps if `pinned` is
 * true.
 */
export interface ICommand {
  type: 'command';
  id: string;
  name: CommandName;
  num_engines?: number | null;
  rank?: number | null;
  run_id?: string | null;
  other_run_id?: string | null;
  curve?: string | null;
  first?: number | null;
  last?: number | null;
  limit?: number | null;
  text?: string | null;
  step?: number | null;
  pinned?: boolean | null;
}

/**
 * One curve of a run in short: its last value, the smallest and the largest;
 * `null`: not a number, or not known.
 */
export interface ICurveSummary {
  type: 'curve_summary';
  name: string;
  last: number | null;
  low: number | null;
  high: number | null;
}

/**
 * A cell that was tried with several values: which one, what it is called, and
 * how many trials there are, begun or not.
 */
export interface ISweep {
  type: 'sweep';
  sweep_id: string;
  name: string;
  trials: number;
}

/**
 * One run of the folder's record. `loss` is the last one recorded; times in
 * seconds since the epoch.
 *
 * `metrics` are its curves but those of devices. `best` names the one by which
 * its checkpoints or trials are compared, and whether less of it is better
 * (`val_loss:min`). `sweep`: it is a trial of that.
 */
export interface IPastRun {
  type: 'past_run';
  run_id: string;
  number: number;
  name: string;
  tags: string[];
  phase: RunPhase;
  world_size: number;
  started: number;
  ended: number | null;
  error: string | null;
  steps: number;
  loss: number | null;
  hyperparameters: Record<string, string | number | boolean | null>;
  metrics: Nested<ICurveSummary>[];
  best: string | null;
  sweep: Nested<ISweep> | null;
}

/**
 * A checkpoint on disk, of the state after `step` steps. `time` in seconds
 * since the epoch.
 *
 * `epoch` is that of the curve (1.5: half way through the second pass) and
 * `loss` that of the step, `null` where they are not known. `metric` is the
 * value of what `metric_name` says, where `--best` asks for it, and `best`
 * marks the best of the run. `place` is where in the cell it goes on.
 * `num_bytes` counts buffers that other checkpoints share too. One that is
 * `pinned` stays until it is deleted.
 */
export interface ICheckpointInfo {
  type: 'checkpoint_info';
  run_id: string;
  step: number;
  place: string;
  epoch: number | null;
  loss: number | null;
  num_bytes: number;
  time: number;
  world_size: number;
  pinned: boolean;
  best: boolean;
  metric_name: string | null;
  metric: number | null;
}

/**
 * A hyperparameter, an argument or a version that differs between two runs;
 * `null` where a run has none of that name.
 */
export interface IChange {
  type: 'change';
  name: string;
  before: string | null;
  after: string | null;
}

/**
 * A function or class of the notebook that differs between two runs: a unified
 * diff by lines.
 */
export interface IFunctionChange {
  type: 'function_change';
  name: string;
  lines: string[];
}

/**
 * What changed from the run `before` to the run `after`. `cell` is a unified
 * diff of their cells by lines, empty if they are equal.
 *
 * `functions` are those that the cells use. What the `hyperparameters` say is
 * not said again in `changes`. `unknown` names runs whose hyperparameters are
 * not recorded, as an older version has written them.
 */
export interface IComparison {
  type: 'comparison';
  before: string;
  after: string;
  changes: Nested<IChange>[];
  cell: string[];
  hyperparameters: Nested<IChange>[];
  functions: Nested<IFunctionChange>[];
  unknown: string[];
}

/**
 * The cell that made a run: its text below the line of the magic, and where it
 * was then; `null`: not known.
 *
 * `notebook` is the name of a file beside the folder of runs.
 */
export interface IRunCell {
  type: 'run_cell';
  run_id: string;
  text: string;
  cell_id: string | null;
  notebook: string | null;
}

/**
 * What a rank of a run has printed: the end of it, if `is_cut`. `ranks` are
 * those that have printed something.
 */
export interface IRunOutput {
  type: 'run_output';
  run_id: string;
  rank: number;
  ranks: number[];
  text: string;
  is_cut: boolean;
}

/**
 * The answer to the command with this `id`. `message` says what was done, or
 * why it was not.
 *
 * `runs` answers `list_runs`, the newest first, `points` `get_curves`,
 * `comparison` `compare_runs` and `cell` `find_cell`; `checkpoints`, the newest
 * first, and the `free_bytes` of their disk answer `list_checkpoints`, and
 * `paths` are what `export_checkpoint` has written. `output` answers
 * `get_output`, `page` `share_run`: all of a run as the text of an HTML file.
 */
export interface IReply {
  type: 'reply';
  id: string;
  ok: boolean;
  message: string;
  runs: Nested<IPastRun>[];
  points: Nested<IPoints>[];
  comparison: Nested<IComparison> | null;
  cell: Nested<IRunCell> | null;
  checkpoints: Nested<ICheckpointInfo>[];
  free_bytes: number | null;
  paths: string[];
  page: string | null;
  output: Nested<IRunOutput> | null;
}

/**
 * What an engine sends to the kernel.
 */
export type EngineEvent =
  | IRankStarted
  | ISteps
  | IProgress
  | IExtent
  | IDeviceUse
  | ITimeSplit
  | IScalars
  | IHyperparameters
  | INotice
  | ISnapshotTaken
  | IStateSize
  | IPaused
  | IStanding
  | IHomeward
  | IShardLeft;

/**
 * What the kernel sends on the telemetry comm.
 */
export type Update =
  | ISnapshot
  | IClusterUpdate
  | IRunUpdate
  | ITrialRuns
  | IPoints
  | IDeviceUse
  | ITimeSplit
  | INotice;

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
  'pruned',
  'failed'
];
