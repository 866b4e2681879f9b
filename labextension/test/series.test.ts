import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Series } from '../src/model/series';

describe('a series', () => {
  it('appends points that come in order', () => {
    const series = new Series('loss');
    series.add({ step: [1, 2], value: [0.9, 0.8] });
    series.add({ step: [3], value: [0.7] });
    assert.deepEqual(series.steps, [1, 2, 3]);
    assert.deepEqual(series.values, [0.9, 0.8, 0.7]);
    assert.equal(series.last, 0.7);
  });

  it('merges points that overlap or come late, and the newer value wins', () => {
    const series = new Series('loss');
    series.add({ step: [4, 5, 6], value: [0.4, 0.5, 0.6] });
    series.add({ step: [1, 2, 5, 7], value: [0.1, 0.2, 0.55, 0.7] });
    assert.deepEqual(series.steps, [1, 2, 4, 5, 6, 7]);
    assert.deepEqual(series.values, [0.1, 0.2, 0.4, 0.55, 0.6, 0.7]);
  });

  it('keeps a gap where there was no finite value', () => {
    const series = new Series('loss');
    series.add({ step: [1, 2, 3, 4], value: [0.9, null, NaN, Infinity] });
    assert.deepEqual(series.values, [0.9, null, null, null]);
    assert.equal(series.last, 0.9);
  });

  it('tells by its revision that there is something to draw', () => {
    const series = new Series('loss');
    const before = series.revision;
    series.add({ step: [], value: [] });
    assert.equal(series.revision, before);
    series.add({ step: [1], value: [1] });
    assert.notEqual(series.revision, before);
  });

  it('takes a hundred thousand points twice in well under a second', () => {
    const series = new Series('loss');
    const step = Array.from({ length: 100_000 }, (_, i) => i + 1);
    const start = performance.now();
    series.add({ step, value: step });
    series.add({ step, value: step });
    assert.equal(series.length, 100_000);
    assert.ok(performance.now() - start < 1000);
  });
});
