/** Trials of one cell with `--vary`: in a list of past runs, and of the cell that runs now. */

import { RUN_PHASES_ENDED, type ITrialRuns, type Nested } from '../protocol';
import type { PastRun } from './archive';
import { bestOf } from './runTable';

/** A sweep of the record, with those of its trials that are listed. */
export interface ISweep {
  id: string;
  name: string;
  /** In the order of the list. */
  trials: readonly PastRun[];
  /** How many there are, begun or not. */
  total: number;
  ended: number;
  /** How many of these a search has stopped early. */
  pruned: number;
  /** By the metric of `--best`, of those that were not stopped early; `null`: none has a value. */
  best: PastRun | null;
  /** Seconds until all have ended, from those that have; `null`: not known. */
  remaining: number | null;
}

/** A row of the table: a run, which may be a trial below its sweep, or a sweep. */
export type Row =
  | { kind: 'run'; run: PastRun; trial: boolean }
  | { kind: 'sweep'; sweep: ISweep };

/** Put the trials of each sweep together, where the first of them is; those of sweeps that are not `expanded` are left out. */
export function groupedRows(
  runs: readonly PastRun[],
  expanded: ReadonlySet<string>
): Row[] {
  const sweeps = new Map<string, PastRun[]>();
  for (const run of runs) {
    if (run.sweep !== null) {
      const trials = sweeps.get(run.sweep.sweep_id) ?? [];
      trials.push(run);
      sweeps.set(run.sweep.sweep_id, trials);
    }
  }
  const rows: Row[] = [];
  for (const run of runs) {
    const id = run.sweep?.sweep_id;
    const trials = id === undefined ? undefined : sweeps.get(id);
    if (id === undefined || trials === undefined) {
      rows.push({ kind: 'run', run, trial: false });
    } else if (trials[0] === run) {
      rows.push({ kind: 'sweep', sweep: sweepOf(id, trials) });
      if (expanded.has(id)) {
        rows.push(
          ...trials.map((one): Row => ({ kind: 'run', run: one, trial: true }))
        );
      }
    }
  }
  return rows;
}

/** Whether a run goes on. */
export function isGoing(run: PastRun): boolean {
  return run.ended === null && run.error === null;
}

function sweepOf(id: string, trials: readonly PastRun[]): ISweep {
  const going = trials.filter(isGoing);
  const ended = trials.filter(run => !isGoing(run));
  const total = Math.max(trials.length, trials[0]?.sweep?.trials ?? 0);
  let best: PastRun | null = null;
  for (const run of trials.filter(({ phase }) => phase !== 'pruned')) {
    const value = bestOf(run)?.value;
    const than = best === null ? undefined : bestOf(best)?.value;
    if (value !== undefined) {
      const isMax = run.best?.endsWith(':max') === true;
      if (than === undefined || (isMax ? value > than : value < than)) {
        best = run;
      }
    }
  }
  return {
    id,
    name: trials[0]?.sweep?.name ?? '',
    trials,
    total,
    ended: ended.length,
    pruned: trials.filter(({ phase }) => phase === 'pruned').length,
    best,
    remaining: remainingOf(
      ended.map(run => (run.ended ?? run.started) - run.started),
      going.length,
      total
    )
  };
}

/** Seconds until all of `total` trials have ended, `going` of them at a time, by what each that has ended took; `null`: not known. */
function remainingOf(
  took: readonly number[],
  going: number,
  total: number
): number | null {
  if (going === 0 || took.length === 0) {
    return null;
  }
  const mean = took.reduce((sum, one) => sum + one, 0) / took.length;
  return (mean * (total - took.length)) / going;
}

/** The trials of the cell that runs now, or ran last, in numbers. */
export interface ITrialCount {
  total: number;
  ended: number;
  /** How many of these a search has stopped early. */
  pruned: number;
  /** Nothing more comes of any. */
  over: boolean;
  /** Seconds from the first beginning to the last end, or until now. */
  elapsed: number;
  remaining: number | null;
}

/** Count trials as the kernel tells them; `null`: there are none. */
export function countTrials(
  trials: Nested<ITrialRuns> | null
): ITrialCount | null {
  if (trials === null || trials.total === 0) {
    return null;
  }
  const ended = trials.runs.filter(({ phase }) =>
    RUN_PHASES_ENDED.includes(phase)
  );
  return {
    total: trials.total,
    ended: ended.length,
    pruned: ended.filter(({ phase }) => phase === 'pruned').length,
    over: trials.over,
    elapsed: Math.max(
      0,
      Math.max(...trials.runs.map(run => run.started + run.elapsed)) -
        Math.min(...trials.runs.map(({ started }) => started))
    ),
    remaining: remainingOf(
      ended.map(({ elapsed }) => elapsed),
      trials.runs.length - ended.length,
      trials.total
    )
  };
}
