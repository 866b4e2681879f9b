import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { TELEMETRY_TARGET, type ITrialRun, type Nested } from '../src/protocol';
import { training } from './trainings';

describe('the trials of a cell', () => {
  it('are told of once, and cannot be paused', async () => {
    const [kernel, training_, model] = await training('reload-mid-run', 4);
    const told: [string, number | undefined, number][] = [];
    model.runEnds.ended.connect((_, run) =>
      told.push([run.run_id, run.trials?.ended, run.elapsed])
    );
    const { run } = training_.connection.state;
    assert.ok(run !== null);
    const trial = (
      run_id: string,
      phase: 'running' | 'finished' | 'pruned'
    ): Nested<ITrialRun> => ({
      run_id,
      name: run_id,
      started: 0,
      phase,
      elapsed: 1,
      pruned_at: phase === 'pruned' ? 3 : null
    });
    const telemetry = kernel.comm(TELEMETRY_TARGET);
    const update = (
      run_id: string,
      phase: 'running' | 'finished' | 'pruned'
    ): void => {
      telemetry.receive({
        ...run,
        type: 'run_update',
        run_id,
        phase
      });
    };
    const trials = (
      phases: ('running' | 'finished' | 'pruned')[],
      over: boolean
    ): void => {
      telemetry.receive({
        type: 'trial_runs',
        runs: phases.map((phase, index) => ({
          ...trial(`t${index}`, phase),
          started: 1000 + 30 * index
        })),
        total: 2,
        over
      });
    };
    trials(['running'], false);
    update('t0', 'running');
    assert.equal(training_.controls.obstacle('pause_run'), 'trials');
    assert.equal(training_.controls.obstacle('stop_run'), null);
    update('t0', 'finished');
    trials(['finished', 'running'], false);
    update('t1', 'running');
    update('t1', 'finished');
    assert.deepEqual(told, []);
    trials(['finished', 'finished'], true);
    // Each took a second, and all of them longer than a user would wait for.
    assert.deepEqual(told, [['t1', 2, 31]]);
  });
});
