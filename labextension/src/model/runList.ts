/** Past runs as a list: which of them, in which order. */

import type { PastRun } from './archive';

export type SortKey = 'newest' | 'oldest' | 'name' | 'loss' | 'duration';

export const SORT_KEYS: readonly SortKey[] = [
  'newest',
  'oldest',
  'name',
  'loss',
  'duration'
];

/** How long a run took, in seconds; `null`: it has not ended, or died. */
export function durationOf(run: PastRun): number | null {
  return run.ended === null ? null : run.ended - run.started;
}

/**
 * The runs that have all words of `filter` in their name, tags, phase or id, in
 * the order of `key`; what is not known comes last.
 */
export function selectRuns(
  runs: readonly PastRun[],
  filter: string,
  key: SortKey
): PastRun[] {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.filter(run => {
    const text = [run.name, run.phase, run.run_id, ...run.tags]
      .join(' ')
      .toLowerCase();
    return words.every(word => text.includes(word));
  });
  const by = ORDERS[key];
  return found.sort((a, b) => by(a, b) || b.number - a.number);
}

const ORDERS: Record<SortKey, (a: PastRun, b: PastRun) => number> = {
  newest: (a, b) => b.number - a.number,
  oldest: (a, b) => a.number - b.number,
  name: (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }),
  loss: (a, b) => knownFirst(a.loss, b.loss),
  duration: (a, b) => knownFirst(durationOf(a), durationOf(b))
};

function knownFirst(a: number | null, b: number | null): number {
  return a === null || b === null
    ? Number(a === null) - Number(b === null)
    : a - b;
}
