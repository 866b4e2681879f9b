import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { toCsv } from '../src/model/csv';
import { groupCurves } from '../src/model/groups';
import { LineBuilder, drawnNames, fullRange } from '../src/model/lines';
import { PlotOptions } from '../src/model/plotOptions';
import { Series } from '../src/model/series';
import { smoothed } from '../src/model/smoothing';
import { extremes, firstNotBelow, nearest } from '../src/model/thinning';
import { XPositions } from '../src/model/xAxis';
import { play } from './fakes';

function series(
  name: string,
  step: number[],
  value: (number | null)[],
  options: { thinned?: boolean } = {}
): Series {
  const one = new Series(name);
  one.add({ step, time: step.map(at => 1000 + at), value, ...options });
  return one;
}

function run(...all: Series[]): {
  runId: string;
  name: string;
  series: Map<string, Series>;
  positions: XPositions;
} {
  const curves = new Map(all.map(one => [one.name, one]));
  return {
    runId: 'r1',
    name: 'first',
    series: curves,
    positions: new XPositions(1000, curves)
  };
}

describe('thinning', () => {
  const x = Array.from({ length: 10_000 }, (_, i) => i);
  const y: (number | null)[] = x.map(i => Math.sin(i / 500));
  y[1234] = 99;
  y[8765] = -99;
  y[5000] = null;

  it('keeps spikes and gaps, in order, and few points', () => {
    const kept = extremes(x, y, 0, x.length, 100);
    assert.ok(kept.length <= 202);
    assert.deepEqual(
      kept,
      [...kept].sort((a, b) => a - b)
    );
    for (const index of [0, 1234, 8765, 5000, x.length - 1]) {
      assert.ok(kept.includes(index), String(index));
    }
  });

  it('keeps every point where there is room', () => {
    assert.deepEqual(extremes(x, y, 10, 15, 100), [10, 11, 12, 13, 14]);
    assert.deepEqual(extremes(x, y, 3, 3, 100), []);
  });

  it('finds places by binary search', () => {
    assert.equal(firstNotBelow([1, 3, 5], 3), 1);
    assert.equal(firstNotBelow([1, 3, 5], 6), 3);
    assert.equal(nearest([1, 3, 5], 3.9), 1);
    assert.equal(nearest([1, 3, 5], 4.1), 2);
    assert.equal(nearest([1, 3, 5], -7), 0);
    assert.equal(nearest([1, 3, 5], 70), 2);
    assert.equal(nearest([], 1), -1);
  });
});

describe('smoothing', () => {
  it('leaves a level as it is from the first value on', () => {
    for (const value of smoothed([2, 2, null, 2], 0.9)) {
      assert.ok(value === null || Math.abs(value - 2) < 1e-12);
    }
  });

  it('is the moving average, and keeps a gap', () => {
    const [first, second, gap, third] = smoothed([1, 0, null, 0], 0.5);
    assert.equal(first, 1);
    assert.equal(second, 1 / 3);
    assert.equal(gap, null);
    assert.equal(third, 1 / 7);
  });

  it('is off at 0', () => {
    assert.deepEqual(smoothed([1, null, 3], 0), [1, null, 3]);
  });
});

describe('groups of curves', () => {
  it('put training and validation of one quantity together', () => {
    assert.deepEqual(
      groupCurves(['val_loss', 'loss', 'train/acc', 'acc (val)', 'Val acc']),
      [
        {
          stem: 'loss',
          members: [
            { name: 'loss', part: 'train' },
            { name: 'val_loss', part: 'validation' }
          ]
        },
        {
          stem: 'acc',
          members: [
            { name: 'train/acc', part: 'train' },
            { name: 'Val acc', part: 'validation' }
          ]
        },
        { stem: 'acc (val)', members: [{ name: 'acc (val)', part: 'train' }] }
      ]
    );
  });

  it('know no part in the middle of a word', () => {
    assert.deepEqual(
      groupCurves(['value', 'training', 'latest']).map(({ stem }) => stem),
      ['value', 'training', 'latest']
    );
  });
});

describe('the x axis', () => {
  const loss = series('loss', [10, 20, 40], [3, 2, 1]);

  it('is over steps or seconds since the start', () => {
    const { positions } = run(loss);
    assert.deepEqual(positions.of(loss, 'step'), [10, 20, 40]);
    assert.deepEqual(positions.of(loss, 'time'), [10, 20, 40]);
    assert.equal(positions.hasEpochs, false);
  });

  it('is over epochs where the loader told of them', () => {
    const epoch = series('epoch', [5, 15, 25], [0.5, 1.5, 2.5]);
    const { positions } = run(loss, epoch);
    assert.equal(positions.hasEpochs, true);
    assert.deepEqual(positions.of(loss, 'epoch'), [1, 2, 4]);
    epoch.add({ step: [45], time: [1045], value: [3.5] });
    assert.deepEqual(positions.of(loss, 'epoch'), [1, 2, 3.25]);
  });

  it('never goes back, whatever the clocks say', () => {
    const odd = new Series('loss');
    odd.add({ step: [1, 2, 3], time: [1005, 1004, 1006], value: [1, 1, 1] });
    assert.deepEqual(run(odd).positions.of(odd, 'time'), [5, 5, 6]);
  });
});

describe('the lines of a chart', () => {
  it('are those of all runs that have the curve', () => {
    const first = run(series('loss', [1, 2], [3, 2]));
    const second = {
      ...run(series('loss', [1, 2, 3], [3, 2, 1]), series('acc', [1], [0])),
      runId: 'r2'
    };
    const runs = [first, second];
    assert.deepEqual(drawnNames(runs), ['loss', 'acc']);
    const [group] = groupCurves(drawnNames(runs));
    assert.ok(group);
    const lines = new LineBuilder(new PlotOptions(), null).lines(group, runs);
    assert.deepEqual(
      lines.map(line => [line.run, line.name, line.x.length]),
      [
        [0, 'loss', 2],
        [1, 'loss', 3]
      ]
    );
    assert.deepEqual(fullRange(lines), [1, 3]);
    assert.deepEqual(fullRange([]), [0, 1]);
  });

  it('have the values as they were behind the smoothed ones', () => {
    const options = new PlotOptions();
    options.smoothing = 0.5;
    const one = run(series('loss', [1, 2], [1, 0]));
    const [group] = groupCurves(['loss']);
    assert.ok(group);
    const [line] = new LineBuilder(options, null).lines(group, [one]);
    assert.deepEqual(line?.raw, [1, 0]);
    assert.deepEqual(line.y, [1, 1 / 3]);
  });

  it('of a recorded run are drawn over its steps', () => {
    const { curves } = play('digits-two-engines');
    assert.ok(curves);
    assert.deepEqual(drawnNames([curves]), ['loss', 'accuracy']);
  });
});

describe('zoom', () => {
  const full = [0, 100] as const;

  it('narrows around a place, which stays where it is', () => {
    const options = new PlotOptions();
    options.move(full, 0.5, 0, 25);
    assert.deepEqual(options.zoom, [12.5, 62.5]);
    options.move(full, 1, 0.25);
    assert.deepEqual(options.zoom, [25, 75]);
  });

  it('stays within the curve, and ends when all of it is shown', () => {
    const options = new PlotOptions();
    options.zoom = [80, 90];
    options.move(full, 1, 5);
    assert.deepEqual(options.zoom, [90, 100]);
    options.move(full, 100);
    assert.equal(options.zoom, null);
    options.zoom = [5, 5];
    assert.equal(options.zoom, null, 'nothing to see');
  });

  it('ends when the axis becomes another', () => {
    const options = new PlotOptions();
    let changes = 0;
    options.changed.connect(() => (changes += 1));
    options.zoom = [1, 2];
    options.xKind = 'time';
    assert.equal(options.zoom, null);
    assert.equal(changes, 2);
  });

  it('tells of the pointer on a signal of its own', () => {
    const options = new PlotOptions();
    const told: string[] = [];
    options.changed.connect(() => told.push('changed'));
    options.hovered.connect(() => told.push('hovered'));
    options.hover = 3;
    options.hover = 3;
    assert.deepEqual(told, ['hovered']);
  });
});

describe('a table', () => {
  it('has a row for each point, and quotes what needs it', () => {
    const points = { step: [1, 2], time: [0, NaN], value: [0.5, null] };
    assert.equal(
      toCsv([{ run: 'a, "b"', curve: 'loss', points }]),
      'run,curve,step,time,value\n' +
        '"a, ""b""",loss,1,1970-01-01T00:00:00.000Z,0.5\n' +
        '"a, ""b""",loss,2,,\n'
    );
  });
});
