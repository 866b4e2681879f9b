import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it, mock } from 'node:test';
import { Archive, type PastRun } from '../src/model/archive';
import { Details } from '../src/model/details';
import { selectRuns, type SortKey } from '../src/model/runList';
import type { ICommand, IReply } from '../src/protocol';
import { settle } from './fakes';

const RUN: PastRun = {
  run_id: 'r1',
  number: 1,
  name: 'first',
  tags: [],
  phase: 'finished',
  world_size: 2,
  started: 1000,
  ended: 1010,
  error: null,
  steps: 100_000,
  loss: 0.5,
  hyperparameters: {},
  metrics: [],
  best: null,
  sweep: null
};

/** A kernel with one curve, whose value at each step is the step. */
class FakeRecord {
  readonly asked: Partial<ICommand>[] = [];
  runs: PastRun[] = [RUN];
  failure: string | null = null;

  readonly ask = (
    name: string,
    options: Partial<ICommand>
  ): Promise<IReply> => {
    this.asked.push({ ...options, name: name as ICommand['name'] });
    if (this.failure !== null) {
      return Promise.reject(new Error(this.failure));
    }
    const reply: IReply = {
      type: 'reply',
      id: '',
      ok: true,
      message: '',
      runs: this.runs,
      points: name === 'get_curves' ? [this._points(options)] : [],
      comparison:
        name === 'compare_runs'
          ? {
              before: 'r1',
              after: 'r2',
              changes: [],
              cell: [],
              hyperparameters: [],
              functions: [],
              unknown: []
            }
          : null,
      cell:
        name === 'find_cell'
          ? { run_id: 'r1', text: 'train()', cell_id: 'c7', notebook: null }
          : null,
      checkpoints: [],
      free_bytes: null,
      paths: [],
      page: null,
      output: null
    };
    return Promise.resolve(reply);
  };

  private _points(options: Partial<ICommand>): IReply['points'][number] {
    const first = options.first ?? 1;
    const last = options.last ?? RUN.steps;
    const every = Math.ceil((last - first + 1) / (options.limit ?? 1000));
    const step: number[] = [];
    for (let at = first; at <= last; at += every) {
      step.push(at);
    }
    if (step[step.length - 1] !== last) {
      step.push(last);
    }
    return {
      run_id: 'r1',
      name: 'loss',
      step,
      time: step,
      value: step,
      thinned: every > 1
    };
  }
}

beforeEach(() => {
  mock.timers.enable({ apis: ['setTimeout'] });
});

afterEach(() => {
  mock.timers.reset();
});

describe('the cell of a run', () => {
  it('is asked for, or else there is an error', async () => {
    const record = new FakeRecord();
    const archive = new Archive(record.ask);
    assert.equal((await archive.cellOf(RUN))?.cell_id, 'c7');
    assert.deepEqual(record.asked, [{ run_id: 'r1', name: 'find_cell' }]);
    record.failure = 'The cell of run r1 cannot be read.';
    assert.equal(await archive.cellOf(RUN), null);
    assert.equal(archive.error, record.failure);
  });
});

describe('the details of a curve', () => {
  it('are fetched once for the part that is looked at in the end', async () => {
    const record = new FakeRecord();
    const details = new Details(record.ask);
    let changes = 0;
    details.changed.connect(() => (changes += 1));
    assert.equal(details.get('r1', 'loss', 1, 5000), null);
    assert.equal(details.get('r1', 'loss', 1, 100), null);
    mock.timers.tick(1000);
    await settle();
    assert.equal(record.asked.length, 1);
    assert.deepEqual([record.asked[0]?.first, record.asked[0]?.last], [1, 100]);
    assert.equal(details.get('r1', 'loss', 1, 100)?.length, 100);
    assert.equal(changes, 1);
  });

  it('that cannot be had leave the outline', async () => {
    const record = new FakeRecord();
    record.failure = 'no such run';
    const details = new Details(record.ask);
    details.get('r1', 'loss', 1, 100);
    mock.timers.tick(1000);
    await settle();
    assert.equal(details.get('r1', 'loss', 1, 100), null);
  });

  it('are all of its points, in as many answers as it takes', async () => {
    const record = new FakeRecord();
    const whole = await new Details(record.ask).all('r1', 'loss');
    assert.equal(whole.length, RUN.steps);
    assert.equal(whole.thinned, false);
    assert.deepEqual(
      whole.steps.slice(0, 3),
      [1, 2, 3],
      'each once and in order'
    );
    assert.ok(record.asked.length < 10);
  });
});

describe('past runs', () => {
  it('are listed, and pinned with their curves', async () => {
    const record = new FakeRecord();
    const archive = new Archive(record.ask);
    assert.equal(archive.runs, null);
    await archive.refresh();
    assert.deepEqual(archive.runs, [RUN]);
    await archive.pin(RUN, true);
    assert.equal(archive.isPinned('r1'), true);
    const [pinned] = archive.pinned;
    assert.equal(pinned?.name, 'first');
    const loss = pinned.series.get('loss');
    assert.equal(loss?.thinned, true);
    assert.deepEqual(pinned.positions.of(loss, 'step')[0], 1);
    await archive.pin(RUN, false);
    assert.deepEqual(archive.pinned, []);
  });

  it('show their new names at once', async () => {
    const record = new FakeRecord();
    const archive = new Archive(record.ask);
    await archive.pin(RUN, true);
    record.runs = [{ ...RUN, name: 'better' }];
    await archive.rename(RUN, 'better');
    assert.equal(archive.runs?.[0]?.name, 'better');
    assert.equal(archive.pinned[0]?.name, 'better');
  });

  it('are unpinned when they are deleted, but not if that fails', async () => {
    const record = new FakeRecord();
    const archive = new Archive(record.ask);
    await archive.pin(RUN, true);
    record.failure = 'stop it first';
    await archive.delete(RUN);
    assert.equal(archive.error, 'stop it first');
    assert.equal(archive.isPinned('r1'), true);
    record.failure = null;
    record.runs = [];
    await archive.delete(RUN);
    assert.equal(archive.error, null);
    assert.equal(archive.isPinned('r1'), false);
    assert.deepEqual(archive.runs, []);
  });

  it('are compared', async () => {
    const archive = new Archive(new FakeRecord().ask);
    await archive.compare(RUN, { ...RUN, run_id: 'r2' });
    assert.equal(archive.comparison?.after, 'r2');
    archive.forgetComparison();
    assert.equal(archive.comparison, null);
  });
});

describe('the list of past runs', () => {
  const runs = [
    { ...RUN, number: 3, name: 'c 10', loss: null, ended: null },
    { ...RUN, number: 2, name: 'c 9', loss: 0.2, tags: ['baseline'] },
    { ...RUN, number: 1, name: 'a', loss: 0.1, ended: 2000 }
  ];
  const numbers = (filter: string, key: SortKey): number[] =>
    selectRuns(runs, filter, key).map(run => run.number);

  it('is sorted, with what is not known at the end', () => {
    assert.deepEqual(numbers('', 'newest'), [3, 2, 1]);
    assert.deepEqual(numbers('', 'oldest'), [1, 2, 3]);
    assert.deepEqual(numbers('', 'name'), [1, 2, 3]);
    assert.deepEqual(numbers('', 'loss'), [1, 2, 3]);
    assert.deepEqual(numbers('', 'duration'), [2, 1, 3]);
  });

  it('is filtered by words in names and tags', () => {
    assert.deepEqual(numbers('C', 'newest'), [3, 2]);
    assert.deepEqual(numbers('base c', 'newest'), [2]);
    assert.deepEqual(numbers('none', 'newest'), []);
  });
});
