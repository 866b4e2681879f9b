import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Series, type IColumns } from '../src/model/series';

function points(step: number[], value: (number | null)[]): IColumns {
  return { step, time: step.map(at => 1000 + at), value };
}

describe('a series', () => {
  it('appends points that come in order', () => {
    const series = new Series('loss');
    series.add(points([1, 2], [0.9, 0.8]));
    series.add(points([3], [0.7]));
    assert.deepEqual(series.steps, [1, 2, 3]);
    assert.deepEqual(series.values, [0.9, 0.8, 0.7]);
    assert.equal(series.last, 0.7);
  });

  it('merges points that overlap or come late, and the newer value wins', () => {
    const series = new Series('loss');
    series.add(points([4, 5, 6], [0.4, 0.5, 0.6]));
    series.add(points([1, 2, 5, 7], [0.1, 0.2, 0.55, 0.7]));
    assert.deepEqual(series.steps, [1, 2, 4, 5, 6, 7]);
    assert.deepEqual(series.values, [0.1, 0.2, 0.4, 0.55, 0.6, 0.7]);
  });

  it('keeps a gap where there was no finite value', () => {
    const series = new Series('loss');
    series.add(points([1, 2, 3, 4], [0.9, null, NaN, Infinity]));
    assert.deepEqual(series.values, [0.9, null, null, null]);
    assert.equal(series.last, 0.9);
  });

  it('tells by its revision that there is something to draw', () => {
    const series = new Series('loss');
    const before = series.revision;
    series.add(points([], []));
    assert.equal(series.revision, before);
    series.add(points([1], [1]));
    assert.notEqual(series.revision, before);
  });

  it('takes a hundred thousand points twice in well under a second of the processor', () => {
    const series = new Series('loss');
    const step = Array.from({ length: 100_000 }, (_, i) => i + 1);
    const start = process.cpuUsage();
    series.add(points(step, step));
    series.add(points(step, step));
    assert.ok(series.length <= 20_000);
    assert.equal(series.thinned, true);
    assert.equal(series.steps[0], 1);
    assert.equal(series.last, 100_000);
    const { user, system } = process.cpuUsage(start);
    // Of the processor and not of the clock: others may have the machine.
    assert.ok(user + system < 1_000_000, `${user + system} µs`);
  });
});
