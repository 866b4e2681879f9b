/**
 * What the split of the time says about a run: the one thing that would help
 * most, as a code with its numbers; the views make a sentence of it.
 */

import {
  PARTS,
  total,
  type IBusiestLine,
  type Part,
  type RankTimes,
  type Reading
} from './times';

export type Advice =
  | { kind: 'too-early' }
  /**
   * A rank waits for its loader; `workers` of them might help. Of large data
   * it is known what `most` of their reading is.
   */
  | {
      kind: 'data';
      rank: number;
      share: number;
      workers: number;
      most: Reading | null;
    }
  /** The others wait for a slow rank. */
  | { kind: 'straggler'; rank: number; share: number; slower: number }
  /** Ranks exchange more than they compute. */
  | { kind: 'communication'; share: number }
  | { kind: 'optimizer'; share: number }
  /** The cell's own code takes the time, most of it in one line where one stands out. */
  | { kind: 'other'; share: number; line: IBusiestLine | null }
  /** Most of the time is spent on forward and backward passes. */
  | { kind: 'good'; share: number };

/** Seconds and steps before anything is said: first steps are slow. */
const MIN_SECONDS = 2;
const MIN_STEPS = 3;
/** Shares of the time from which a part is worth a word. */
const MUCH: Record<Exclude<Part, 'forward' | 'backward'>, number> = {
  data: 0.2,
  communication: 0.35,
  optimizer: 0.4,
  other: 0.4
};
/** A rank that needs so much longer than the median is a straggler. */
const SLOWER = 1.3;
/** More workers than this seldom help. */
const MAX_WORKERS = 8;

/** Say what would help most; ranks that wait for each other are one thing. */
export function advise(ranks: readonly RankTimes[]): Advice {
  const ready = ranks.filter(
    rank => rank.step >= MIN_STEPS && total(rank.recent) >= MIN_SECONDS
  );
  if (ready.length === 0 || ready.length < ranks.length) {
    return { kind: 'too-early' };
  }
  const worst = largest(ready, 'data');
  if (worst.share('data') >= MUCH.data) {
    return {
      kind: 'data',
      rank: worst.rank,
      share: worst.share('data'),
      workers: moreWorkers(worst.numWorkers ?? 0),
      most: worst.mostOfReading
    };
  }
  const late = straggler(ready);
  const mean = meanShares(ready);
  if (late !== null && mean.communication >= MUCH.data) {
    return { kind: 'straggler', share: mean.communication, ...late };
  }
  for (const kind of ['communication', 'optimizer'] as const) {
    if (mean[kind] >= MUCH[kind]) {
      return { kind, share: mean[kind] };
    }
  }
  if (mean.other >= MUCH.other) {
    const line = largest(ready, 'other').busiest;
    return { kind: 'other', share: mean.other, line };
  }
  return { kind: 'good', share: mean.forward + mean.backward };
}

/**
 * The rank that the others wait for, and how many times longer than the median
 * it works on a step; `null` where all are about as fast.
 */
export function straggler(
  ranks: readonly RankTimes[]
): { rank: number; slower: number } | null {
  const busy = ranks.map(({ rank, recent }) => ({
    rank,
    seconds: total(recent) - recent.communication
  }));
  busy.sort((a, b) => a.seconds - b.seconds);
  const last = busy[busy.length - 1];
  // Of two ranks, the faster one is what the other is held against.
  const median = busy[Math.floor((busy.length - 1) / 2)];
  if (last === undefined || median === undefined || median.seconds <= 0) {
    return null;
  }
  const slower = last.seconds / median.seconds;
  return slower >= SLOWER ? { rank: last.rank, slower } : null;
}

function largest(ranks: readonly RankTimes[], part: Part): RankTimes {
  return ranks.reduce((worst, rank) =>
    rank.share(part) > worst.share(part) ? rank : worst
  );
}

function meanShares(ranks: readonly RankTimes[]): Record<Part, number> {
  const means = PARTS.map(part => [
    part,
    ranks.reduce((sum, rank) => sum + rank.share(part), 0) / ranks.length
  ]);
  return Object.fromEntries(means) as Record<Part, number>;
}

function moreWorkers(workers: number): number {
  return workers === 0 ? 4 : Math.min(MAX_WORKERS, 2 * workers);
}
