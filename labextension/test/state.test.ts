import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { TrainingState } from '../src/model/state';
import type { Update } from '../src/protocol';
import { play, recorded } from './fakes';

describe('a recorded run on two engines', () => {
  it('ends with the state of its last update', () => {
    const { run, running, cluster } = play('digits-two-engines');
    assert.equal(running, false);
    assert.equal(run?.phase, 'finished');
    assert.equal(run.step, 69);
    assert.equal(run.epoch, 3);
    assert.equal(run.batch, 23);
    assert.equal(run.samples_per_second, 1793.4);
    assert.equal(cluster.phase, 'running');
    assert.deepEqual(
      cluster.engines.map(engine => [engine.rank, engine.device]),
      [
        [0, 'cpu'],
        [1, 'cpu']
      ]
    );
  });

  it('has every point of every curve', () => {
    const { series, run } = play('digits-two-engines');
    assert.deepEqual([...series.keys()], ['loss', 'accuracy']);
    const loss = series.get('loss');
    assert.deepEqual(
      loss?.steps,
      Array.from({ length: 69 }, (_, i) => i + 1)
    );
    assert.equal(loss.last, run?.loss);
    assert.deepEqual(series.get('accuracy')?.steps, [25, 50, 69]);
    assert.equal(series.get('accuracy')?.last, 0.963889);
  });

  it('shows the newest use of each device', () => {
    const state = play('digits-two-engines');
    const newest = recorded('digits-two-engines')
      .filter(update => update.type === 'device_use')
      .slice(-2);
    assert.deepEqual([...state.devices.values()], newest);
  });

  it('says once what both ranks noticed', () => {
    assert.equal(play('digits-two-engines').notices.length, 1);
  });

  it('is under way before any step is done', () => {
    const { run, running } = play('digits-two-engines', 4);
    assert.equal(run?.phase, 'starting');
    assert.equal(running, true);
    assert.equal(run.batches, null);
  });
});

describe('a page that is loaded in the middle of a run', () => {
  it('has every point once, whatever overtook the snapshot', () => {
    const { series, run } = play('reload-mid-run');
    assert.deepEqual(
      series.get('loss')?.steps,
      Array.from({ length: 53 }, (_, i) => i + 1)
    );
    assert.equal(run?.phase, 'stopped');
  });

  it('has the notices of the run, each once', () => {
    const snapshot = recorded('reload-mid-run').find(
      update => update.type === 'snapshot'
    );
    assert.ok(snapshot);
    const notice = { rank: 0, text: 'The loader is not split.' };
    const state = new TrainingState();
    state.apply({ ...snapshot, notices: [notice] });
    state.apply({ type: 'notice', ...notice });
    assert.deepEqual(
      state.notices.map(({ text }) => text),
      [notice.text]
    );
  });
});

describe('a run that fails', () => {
  it('keeps its error and the gap in its curve', () => {
    const { series, run, running, cluster } = play('failed-run');
    assert.equal(running, false);
    assert.match(run?.error ?? '', /^ValueError: Expected input batch_size/);
    assert.deepEqual(series.get('loss')?.values.slice(2), [
      98.125,
      null,
      null,
      null
    ]);
    assert.equal(cluster.phase, 'running');
  });
});

describe('a new run', () => {
  it('starts with no curve, notice or error of the last one', () => {
    const state = play('digits-two-engines');
    const first = recorded('failed-run').find(
      update => update.type === 'run_update'
    );
    assert.ok(first);
    state.apply(first);
    assert.equal(state.series.size, 0);
    assert.equal(state.notices.length, 0);
    assert.equal(state.run?.step, 0);
  });
});

describe('a kernel that goes away', () => {
  it('loses a run that was under way, but not its curve', () => {
    const state = play('reload-mid-run', 4);
    state.lose();
    assert.equal(state.run?.phase, 'lost');
    assert.equal(state.running, false);
    assert.equal(state.series.get('loss')?.length, 45);
    assert.equal(state.cluster.phase, 'stopped');
    assert.equal(state.devices.size, 0);
  });

  it('leaves a run that had ended as it was', () => {
    const state = play('digits-two-engines');
    state.lose();
    assert.equal(state.run?.phase, 'finished');
  });

  it('leaves the last run to be read when the new kernel knows of none', () => {
    const state = play('reload-mid-run', 4);
    state.lose();
    const empty = recorded('digits-two-engines')[0];
    assert.ok(empty);
    state.apply(empty);
    assert.equal(state.run?.phase, 'lost');
    assert.equal(state.series.get('loss')?.length, 45);
  });
});

describe('the history of a device', () => {
  it('has an entry a second, of the last two minutes', () => {
    const state = play('digits-two-engines', 3);
    const use = recorded('digits-two-engines').find(
      update => update.type === 'device_use'
    );
    assert.ok(use);
    for (let tenth = 0; tenth <= 3000; tenth++) {
      const time = use.time + tenth / 10;
      state.apply({ ...use, time, utilization: tenth % 10 });
    }
    const entries = state.histories.get(use.rank)?.entries() ?? [];
    assert.equal(entries.length, 121);
    assert.ok(Math.abs((entries[0]?.ago ?? 0) - 120) < 1);
    assert.ok(entries.every(({ percent }) => percent === 0));
  });
});

describe('a cluster that shrinks', () => {
  it('forgets the devices of ranks that are gone', () => {
    const state = play('digits-two-engines');
    const { engines } = state.cluster;
    state.apply({
      type: 'cluster_update',
      phase: 'running',
      engines: engines.slice(0, 1),
      lost_hosts: [],
      detail: ''
    });
    assert.deepEqual([...state.devices.keys()], [0]);
  });
});

describe('a run that goes back to a checkpoint', () => {
  it('has no points after it until they are made again', () => {
    const passed = recorded('digits-two-engines').findIndex(
      message => message.type === 'run_update' && message.step > 4
    );
    const state = play('digits-two-engines', passed + 1);
    const { run, series } = state;
    const loss = series.get('loss');
    assert.ok(run !== null && loss !== undefined && run.step > 4);
    assert.equal(loss.steps[loss.length - 1], run.step);
    const { revision } = loss;
    state.apply({ ...run, type: 'run_update', phase: 'running', step: 4 });
    assert.equal(state.run?.step, 4);
    assert.deepEqual(loss.steps, [1, 2, 3, 4]);
    assert.equal(loss.values.length, 4);
    assert.ok(loss.revision > revision);
    state.apply({
      type: 'points',
      run_id: run.run_id,
      name: 'loss',
      step: [5],
      time: [0],
      value: [0.5],
      thinned: false
    });
    assert.equal(loss.last, 0.5);
  });
});

describe("a cell's trials", () => {
  const [one, two] = ['one', 'two'].map(name => ({
    run_id: name,
    name: `lr=${name}`,
    started: 0,
    phase: 'running' as const,
    elapsed: 0,
    pruned_at: null
  }));
  assert.ok(one !== undefined && two !== undefined);
  const run = play('digits-two-engines').run;
  assert.ok(run !== null);

  const update = (run_id: string): Update =>
    ({ ...run, type: 'run_update', run_id, step: 1 }) as Update;
  const points = (run_id: string, value: number): Update => ({
    type: 'points',
    run_id,
    name: 'loss',
    step: [value],
    time: [0],
    value: [value],
    thinned: false
  });
  const lasts = (state: TrainingState): unknown[] =>
    [state.curves, ...state.trials].map(curves => [
      curves?.runId,
      curves?.series.get('loss')?.values
    ]);

  it('have their curves beside those of the one that is shown', () => {
    const state = play('digits-two-engines');
    state.apply({
      type: 'trial_runs',
      runs: [one, two],
      total: 2,
      over: false
    });
    state.apply(update('one'));
    state.apply(points('one', 1));
    state.apply(points('two', 2));
    assert.deepEqual(lasts(state), [
      ['one', [1]],
      ['two', [2]]
    ]);
    // The first has ended, and the second is shown.
    state.apply(update('two'));
    state.apply(points('one', 3));
    state.apply(points('two', 4));
    assert.deepEqual(lasts(state), [
      ['two', [2, 4]],
      ['one', [1, 3]]
    ]);
  });

  it('have what they trained until they were pruned', () => {
    const state = play('digits-two-engines');
    const runs = [one, two];
    state.apply({ type: 'trial_runs', runs, total: 2, over: false });
    state.apply(update('one'));
    for (const value of [1, 2, 3]) {
      state.apply(points('two', value));
    }
    const pruned = { ...two, phase: 'pruned' as const, pruned_at: 2 };
    state.apply({
      type: 'trial_runs',
      runs: [one, pruned],
      total: 2,
      over: true
    });
    assert.deepEqual(lasts(state)[1], ['two', [1, 2]]);
    assert.equal(state.trialCount?.pruned, 1);
  });

  it('are gone when another cell runs', () => {
    const state = play('digits-two-engines');
    state.apply({
      type: 'trial_runs',
      runs: [one, two],
      total: 2,
      over: false
    });
    state.apply(update('one'));
    state.apply(points('two', 2));
    state.apply(update('another'));
    assert.deepEqual(lasts(state), [['another', undefined]]);
  });
});
