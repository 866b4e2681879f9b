import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  formatDuration,
  formatMemory,
  formatPercent,
  formatSeconds,
  formatTick,
  formatValue,
  formatWhen,
  shortNames
} from '../src/panels/format';

describe('numbers for a person', () => {
  it('have four significant digits', () => {
    assert.equal(formatValue(0.312849), '0.3128');
    assert.equal(formatValue(0.0000001), '1e-7');
    assert.equal(formatValue(-0.0000062), '-6.2e-6');
    assert.equal(formatValue(0.0001), '0.0001');
    assert.equal(formatValue(0), '0');
    assert.equal(formatValue(null), '–');
  });

  it('are short on an axis', () => {
    assert.equal(formatTick(9500), '9500');
    assert.equal(formatTick(50_000), '50K');
    assert.equal(formatTick(1_250_000), '1.25M');
  });

  it('have a unit where they are seconds', () => {
    assert.equal(formatSeconds(0.254), '0.25 s');
    assert.equal(formatSeconds(42.44), '42.4 s');
    assert.equal(formatSeconds(125), '2:05');
  });

  it('name the unit of memory once', () => {
    assert.equal(formatMemory(1.2 * 2 ** 30, 16 * 2 ** 30), '1.2 / 16 GiB');
    assert.equal(formatMemory(512, 900), '512 / 900 B');
  });

  it('are of trials without what all have in their names', () => {
    const trials = ['sweep lr=0.1 width=8', 'sweep lr=0.1 width=32'];
    assert.deepEqual(shortNames(trials), ['width=8', 'width=32']);
    assert.deepEqual(shortNames(['a lr=1', 'a lr=2']), ['lr=1', 'lr=2']);
    for (const kept of [[], ['a lr=1'], ['run 1', 'run 2'], ['a lr=1', 'a']]) {
      assert.deepEqual(shortNames(kept), kept);
    }
    assert.deepEqual(shortNames(['lr=1', 'lr=1']), ['lr=1', 'lr=1']);
  });

  it('are rounded percents', () => {
    assert.equal(formatPercent(86.6), '87%');
  });

  it('have no day where they are moments of this day', () => {
    const noon = new Date(2026, 10, 22, 12, 0).getTime() / 1000;
    assert.match(formatWhen(noon - 3600, noon), /^11:00/);
    const before = formatWhen(noon - 86_400, noon);
    assert.match(before, /21/);
    assert.match(before, /12:00/);
  });

  it('are times of day for durations', () => {
    assert.equal(formatDuration(7.9), '0:07');
    assert.equal(formatDuration(754), '12:34');
    assert.equal(formatDuration(3723), '1:02:03');
  });
});
