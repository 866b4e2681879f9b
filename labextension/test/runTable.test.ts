import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { PastRun } from '../src/model/archive';
import { MAX_DRAWN, RunSelection } from '../src/model/runSelection';
import { Series } from '../src/model/series';
import { XPositions } from '../src/model/xAxis';
import {
  bestOf,
  columnsOf,
  rowsOf,
  tableCsv,
  type IColumn
} from '../src/model/runTable';
import { countTrials, groupedRows } from '../src/model/sweeps';
import type {
  ICommand,
  IReply,
  ITrialRun,
  Nested,
  RunPhase
} from '../src/protocol';
import { settle } from './fakes';

const LABELS = {
  name: 'Name',
  phase: 'State',
  loss: 'Loss',
  best: 'Best',
  world_size: 'Engines',
  duration: 'Duration',
  started: 'Started',
  tags: 'Tags'
};

function run(number: number, more: Partial<PastRun> = {}): PastRun {
  return {
    run_id: `r${number}`,
    number,
    name: `run-${number}`,
    tags: [],
    phase: 'finished',
    world_size: 2,
    started: 1000 * number,
    ended: 1000 * number + 10 * number,
    error: null,
    steps: 100,
    loss: 1 / number,
    hyperparameters: { optimizer: 'SGD', lr: number / 10 },
    metrics: [
      { name: 'loss', last: 1 / number, low: 0.1, high: 2 },
      { name: 'accuracy', last: 0.5, low: 0.1 * number, high: 0.2 * number }
    ],
    best: null,
    sweep: null,
    ...more
  };
}

const ids = (columns: readonly IColumn[]): string[] =>
  columns.map(({ id }) => id);

const trial = (number: number, more: Partial<PastRun> = {}): PastRun =>
  run(number, {
    sweep: { sweep_id: 's', name: 'lr', trials: 4 },
    best: 'accuracy:max',
    ...more
  });

describe('the trials of a sweep', () => {
  const runs = [run(5), trial(3, { ended: null }), run(4), trial(2), trial(1)];

  it('are one row, which unfolds', () => {
    const folded = groupedRows(runs, new Set());
    assert.deepEqual(
      folded.map(row => (row.kind === 'sweep' ? row.sweep.name : row.run.name)),
      ['run-5', 'lr', 'run-4']
    );
    const unfolded = groupedRows(runs, new Set(['s']));
    assert.deepEqual(
      unfolded.map(row => row.kind === 'run' && row.trial),
      [false, false, true, true, true, false]
    );
  });

  it('are counted, with the best and the time that is left', () => {
    const [, row] = groupedRows(runs, new Set());
    assert.ok(row?.kind === 'sweep');
    const { total, ended, best, remaining } = row.sweep;
    assert.deepEqual([total, ended, best?.name], [4, 2, 'run-3']);
    assert.equal(remaining, 15 * 2); // two took 20 and 10 seconds, one runs
  });

  it('are not the best where a search has stopped them early', () => {
    const [, row] = groupedRows(
      runs.map(one =>
        one.name === 'run-3' ? { ...one, phase: 'pruned' } : one
      ),
      new Set()
    );
    assert.ok(row?.kind === 'sweep');
    assert.equal(row.sweep.pruned, 1);
    assert.notEqual(row.sweep.best?.name, 'run-3');
  });

  it('are counted as the kernel tells them too', () => {
    const told = (phase: RunPhase, elapsed: number): Nested<ITrialRun> => ({
      run_id: phase,
      name: phase,
      started: 0,
      phase,
      elapsed,
      pruned_at: null
    });
    const runs = [told('finished', 30), told('running', 1)];
    assert.deepEqual(countTrials({ runs, total: 3, over: false }), {
      total: 3,
      ended: 1,
      pruned: 0,
      over: false,
      elapsed: 30,
      remaining: 60
    });
    assert.equal(countTrials(null), null);
  });
});

describe('the columns of a table of runs', () => {
  it('are facts, and what tells the runs apart', () => {
    const runs = [run(1), run(2)];
    const facts = ids(columnsOf([], false, LABELS));
    assert.deepEqual(facts, [
      'name',
      'phase',
      'loss',
      'world_size',
      'duration',
      'started'
    ]);
    const differing = ids(columnsOf(runs, false, LABELS));
    assert.deepEqual(differing.slice(facts.length), ['hyperparameter lr']);
    assert.deepEqual(ids(columnsOf(runs, true, LABELS)).slice(facts.length), [
      'metric accuracy',
      'hyperparameter optimizer',
      'hyperparameter lr'
    ]);
  });

  it('have their numbers below each other, where some runs have none too', () => {
    const runs = [run(1, { loss: null, hyperparameters: {} }), run(2)];
    const columns = columnsOf(runs, true, LABELS);
    assert.deepEqual(ids(columns.filter(({ numeric }) => !numeric)), [
      'name',
      'phase',
      'hyperparameter optimizer'
    ]);
  });

  it('have the best value by the metric that a run is compared by', () => {
    const runs = [run(1), run(2, { best: 'accuracy:max' })];
    assert.equal(bestOf(run(1)), null);
    assert.deepEqual(bestOf(run(2, { best: 'accuracy:max' })), {
      name: 'accuracy',
      value: 0.4
    });
    assert.equal(bestOf(run(2, { best: 'accuracy:min' }))?.value, 0.2);
    assert.equal(bestOf(run(2, { best: 'lost:min' })), null);
    assert.ok(ids(columnsOf(runs, false, LABELS)).includes('best'));
  });
});

describe('the rows of a table of runs', () => {
  const runs = [
    run(1, { tags: ['base'] }),
    run(2, { hyperparameters: { optimizer: 'Adam', lr: 0.05 } }),
    run(3, { loss: null, ended: null })
  ];
  const columns = columnsOf(runs, true, LABELS);
  const names = (filter: string, column: string, descending = false): string =>
    rowsOf(runs, filter, { column, descending }, columns)
      .map(({ number }) => number)
      .join('');

  it('are ordered by any column, what is not known last', () => {
    assert.equal(names('', 'started', true), '321');
    assert.equal(names('', 'loss'), '213');
    assert.equal(names('', 'loss', true), '123');
    assert.equal(names('', 'duration', true), '213');
    assert.equal(names('', 'hyperparameter lr'), '213');
    assert.equal(names('', 'hyperparameter optimizer'), '231');
    assert.equal(names('', 'gone'), '321');
  });

  it('are found by name, tag and hyperparameter', () => {
    assert.equal(names('BASE', 'name'), '1');
    assert.equal(names('optimizer=adam', 'name'), '2');
    assert.equal(names('run- sgd', 'name'), '13');
  });

  it('are saved with all that is known, and no formula', () => {
    const odd = run(4, {
      name: '=1+1, "x"',
      loss: -0.5,
      hyperparameters: {}
    });
    const chosen = columns.filter(({ id }) =>
      ['name', 'loss', 'hyperparameter lr'].includes(id)
    );
    assert.equal(
      tableCsv([odd, run(2)], chosen),
      'run_id,Name,Loss,lr\nr4,"\'=1+1, ""x""",-0.5,\nr2,run-2,0.5,0.2\n'
    );
  });
});

describe('the runs that are selected', () => {
  const asked: Partial<ICommand>[] = [];
  const list = Array.from({ length: 60 }, (_, i) => run(60 - i));
  const reply: IReply = {
    type: 'reply',
    id: '',
    ok: true,
    message: '',
    runs: list,
    points: [],
    comparison: null,
    cell: null,
    checkpoints: [],
    free_bytes: null,
    paths: [],
    page: null,
    output: null
  };
  const selection = new RunSelection((name, options) => {
    asked.push({ ...options, name });
    const { run_id: id } = options;
    const points =
      name === 'get_curves' && options.curve === 'device/'
        ? ['device/0/utilization', 'device/1/utilization'].map(curve => ({
            run_id: id ?? '',
            name: curve,
            step: [5, 5],
            time: [60_001, 60_002],
            value: [80, 90],
            thinned: false
          }))
        : [
            {
              run_id: id ?? '',
              name: 'loss',
              step: [1, 2],
              time: [1, 2],
              value: [2, 1],
              thinned: true
            }
          ];
    return Promise.resolve({ ...reply, points });
  });

  it('are the newest at first, and then what the user selects', async () => {
    await selection.refresh();
    await settle();
    assert.deepEqual(selection.ids, ['r60']);
    selection.toggle('r58');
    selection.toggle('r59');
    selection.toggle('r60');
    await settle();
    assert.deepEqual(
      selection.curveRuns.map(({ runId }) => runId),
      ['r58', 'r59']
    );
  });

  it('have coarser curves the more they are, and only so many are drawn', async () => {
    asked.length = 0;
    selection.select(list.map(({ run_id }) => run_id));
    await settle();
    await settle();
    const curves = asked.filter(({ name }) => name === 'get_curves');
    assert.equal(curves.length, MAX_DRAWN - 2);
    assert.ok(curves.every(({ limit }) => (limit ?? 0) < 2000));
    assert.equal(selection.curveRuns.length, MAX_DRAWN);
  });

  it('say while their curves arrive that more will come, and once when all are there', async () => {
    const told: [number, boolean][] = [];
    const onChanged = (): void => {
      told.push([selection.curveRuns.length, selection.isFetching]);
    };
    selection.select([]);
    await settle();
    selection.changed.connect(onChanged);
    selection.select(list.slice(0, 10).map(({ run_id }) => run_id));
    await settle();
    await settle();
    selection.changed.disconnect(onChanged);
    const arrivals = told.filter(([drawn]) => drawn > 0).slice(0, -1);
    assert.ok(arrivals.length >= 10);
    assert.ok(arrivals.every(([, isFetching]) => isFetching));
    assert.deepEqual(told[told.length - 1], [10, false]);
    selection.select(list.map(({ run_id }) => run_id));
    await settle();
    await settle();
  });

  it('have the curves that the kernel tells, without a question', async () => {
    const told = new Series('loss');
    told.add({ step: [1], time: [1], value: [7] });
    const series = new Map([['loss', told]]);
    const positions = new XPositions(0, series);
    const going = { ...run(60), ended: null };
    asked.length = 0;
    const watching = new RunSelection(
      (name, options) => {
        asked.push({ ...options, name });
        return Promise.resolve({ ...reply, runs: [going, run(59)] });
      },
      () => [{ runId: 'r60', name: 'going', series, positions }]
    );
    await watching.refresh();
    await watching.refresh();
    await settle();
    assert.deepEqual(
      watching.curveRuns.map(({ name }) => name),
      ['going']
    );
    assert.ok(asked.every(({ name }) => name === 'list_runs'));
    watching.toggle('r59');
    await settle();
    assert.deepEqual(
      watching.curveRuns.map(({ runId }) => runId),
      ['r60', 'r59']
    );
  });

  it('has of one the devices, rank by rank', async () => {
    await selection.open('r60');
    assert.equal(selection.opened, 'r60');
    assert.deepEqual(
      selection.devices.map(({ name, series }) => [
        name,
        series.get('utilization')?.values
      ]),
      [
        ['0', [80, 90]],
        ['1', [80, 90]]
      ]
    );
  });
});
