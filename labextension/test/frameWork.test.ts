import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { workInFrame, type Due } from '../src/panels/frameWork';

/** Work until nothing is left, with a clock that goes on by `took` with each item; return how many items each frame had. */
function frames(
  kinds: readonly Due[],
  took: (kind: Due) => number,
  lines = 1
): number[] {
  const left = new Map(kinds.map((kind, index) => [index, kind]));
  const counts: number[] = [];
  let time = 0;
  for (let more = true; more;) {
    const before = left.size;
    more = workInFrame(
      [...left],
      ([, kind]) => kind,
      ([index, kind]) => {
        left.delete(index);
        time += took(kind);
        return { lines };
      },
      () => time
    );
    counts.push(before - left.size);
  }
  return counts;
}

describe('workInFrame', () => {
  it('draws the charts of a run, and tells those that nobody sees, in one frame', () => {
    const kinds = [
      ...Array<Due>(6).fill('drawn'),
      ...Array<Due>(14).fill('told')
    ];
    assert.deepEqual(
      frames(kinds, () => 0.1),
      [20]
    );
  });

  it('draws two charts of many lines in a frame, and tells others beside them', () => {
    const kinds = [
      ...Array<Due>(6).fill('drawn'),
      ...Array<Due>(14).fill('told')
    ];
    assert.deepEqual(
      frames(kinds, () => 0.1, 50),
      [16, 2, 2]
    );
  });

  it('leaves the rest for the next frame after a while, and does one at least', () => {
    assert.deepEqual(
      frames(Array<Due>(3).fill('told'), () => 9),
      [1, 1, 1]
    );
    assert.deepEqual(
      frames(Array<Due>(5).fill('told'), () => 3),
      [3, 2]
    );
  });

  it('passes over what is not due', () => {
    const done: number[] = [];
    const more = workInFrame(
      [1, 2, 3, 4, 5, 6],
      item => (item % 2 === 0 ? 'drawn' : 'nothing'),
      item => {
        done.push(item);
        return { lines: 10 };
      },
      () => 0
    );
    assert.equal(more, true);
    assert.deepEqual(done, [2, 4]);
  });
});
