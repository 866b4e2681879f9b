import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { advise, straggler } from '../src/model/advice';
import {
  PARTS,
  RankTimes,
  READING,
  total,
  type Part,
  type Reading
} from '../src/model/times';

type Seconds = Record<Part | Reading | 'rows' | 'bytes_read', number>;

const NOTHING = {
  ...(Object.fromEntries(
    [...PARTS, ...READING, 'rows', 'bytes_read'].map(part => [part, 0])
  ) as Seconds),
  busiest_file: '',
  busiest_line: 0,
  busiest_code: ''
};

/** A rank after 20 steps that took these seconds. */
function rank(number: number, parts: Partial<Seconds>, workers = 0): RankTimes {
  return new RankTimes({
    ...NOTHING,
    ...parts,
    rank: number,
    step: 20,
    num_workers: workers
  });
}

const COMPUTING = { forward: 4, backward: 5, optimizer: 1 };

describe('the times of a rank', () => {
  it('are those of the whole run, and of the last seconds', () => {
    const times = rank(0, {});
    for (let second = 1; second <= 60; second++) {
      const data = Math.min(30, second);
      times.add({
        ...NOTHING,
        data,
        forward: second - data,
        rank: 0,
        step: second,
        num_workers: 2
      });
    }
    assert.equal(times.all.data, 30);
    assert.equal(times.recent.data, 0);
    const recent = total(times.recent);
    assert.ok(recent >= 5 && recent <= 12, String(recent));
    assert.equal(times.step, 60);
    assert.equal(times.numWorkers, 2);
  });
});

describe('the advice', () => {
  it('waits for a few steps of all ranks', () => {
    assert.deepEqual(advise([]), { kind: 'too-early' });
    const early = new RankTimes({
      ...NOTHING,
      data: 9,
      rank: 1,
      step: 1,
      num_workers: 0
    });
    const ranks = [rank(0, COMPUTING), early];
    assert.deepEqual(advise(ranks), { kind: 'too-early' });
  });

  it('names the rank that waits for data, and more workers', () => {
    const ranks = [
      rank(0, COMPUTING),
      rank(3, { ...COMPUTING, data: 10 }),
      rank(4, { ...COMPUTING, data: 5 })
    ];
    assert.deepEqual(advise(ranks), {
      kind: 'data',
      rank: 3,
      share: 0.5,
      workers: 4,
      most: null
    });
    const busy = rank(0, { ...COMPUTING, data: 10 }, 3);
    const advice = advise([busy]);
    assert.equal(advice.kind === 'data' && advice.workers, 6);
  });

  it('names what large data are waited for', () => {
    for (const what of READING) {
      const reading = { files: 1, decoding: 1, [what]: 5 };
      const busy = rank(0, { ...COMPUTING, data: 10, ...reading });
      const advice = advise([busy]);
      assert.equal(advice.kind === 'data' && advice.most, what);
    }
    const little = rank(0, { ...COMPUTING, data: 10, decoding: 0.5 });
    const advice = advise([little]);
    assert.equal(advice.kind === 'data' && advice.most, null);
  });

  it('goes by the last seconds', () => {
    const times = rank(0, { ...COMPUTING, data: 10, files: 100 });
    for (let second = 1; second <= 30; second++) {
      const data = 10 + second;
      const parts = { ...COMPUTING, data, files: 100, transforms: second };
      times.add({ ...NOTHING, ...parts, rank: 0, step: 30, num_workers: 0 });
    }
    const advice = advise([times]);
    assert.equal(advice.kind === 'data' && advice.most, 'transforms');
  });

  it('names the rank that the others wait for', () => {
    const ranks = [
      rank(0, { ...COMPUTING, communication: 5 }),
      rank(1, { ...COMPUTING, communication: 5 }),
      rank(2, { forward: 7, backward: 8 })
    ];
    assert.deepEqual(straggler(ranks), { rank: 2, slower: 1.5 });
    assert.equal(advise(ranks).kind, 'straggler');
  });

  it('says what else takes the time', () => {
    for (const part of ['communication', 'optimizer', 'other'] as const) {
      const ranks = [0, 1].map(number =>
        rank(number, { forward: 2, backward: 3, [part]: 5 })
      );
      const { kind, ...told } = advise(ranks);
      assert.deepEqual(
        { line: null, kind, ...told },
        { line: null, kind: part, share: 0.5 }
      );
    }
  });

  it('names the line that takes it', () => {
    const slow = new RankTimes({
      ...NOTHING,
      forward: 3,
      other: 7,
      rank: 1,
      step: 20,
      num_workers: 0,
      busiest_file: 'cell',
      busiest_line: 3,
      busiest_code: 'x = augment(x)'
    });
    const ranks = [rank(0, { forward: 5, other: 5 }), slow];
    assert.deepEqual(advise(ranks), {
      kind: 'other',
      share: 0.6,
      line: { line: 3, code: 'x = augment(x)' }
    });
  });

  it('says when nothing stands out', () => {
    const ranks = [rank(0, COMPUTING), rank(1, COMPUTING)];
    assert.deepEqual(advise(ranks), { kind: 'good', share: 0.9 });
    assert.equal(straggler(ranks), null);
  });
});
