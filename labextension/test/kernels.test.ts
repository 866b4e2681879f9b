import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  COMMAND_TARGET,
  RECORD_TARGET,
  TELEMETRY_TARGET
} from '../src/protocol';
import { FakeKernel, recorded, settle } from './fakes';
import { training } from './trainings';

describe('A kernel without subshells', () => {
  it('is interrupted by Stop while a cell runs, and says why the others wait', async () => {
    const old = new FakeKernel();
    old.supportsSubshells = false;
    const [, { controls, archive }] = await training('reload-mid-run', 4, old);
    const end = old.begin('%%distribute');
    assert.equal(controls.obstacle('pause_run'), 'kernel-busy');
    assert.equal(controls.obstacle('checkpoint_now'), 'kernel-busy');
    assert.equal(controls.obstacle('stop_run'), null);
    await archive.refresh();
    assert.equal(archive.error, 'This kernel answers after the cell.');
    await controls.send('stop_run');
    assert.equal(old.interrupts, 1);
    assert.equal(controls.stopping, true, 'until the run has ended');
    assert.deepEqual(old.comm(COMMAND_TARGET).sent, []);
    old.comm(TELEMETRY_TARGET).receive(...recorded('reload-mid-run').slice(4));
    end();
    assert.equal(controls.stopping, false);
    assert.equal(controls.obstacle('stop_cluster'), null);
    void controls.send('stop_cluster');
    assert.equal(old.comm(COMMAND_TARGET).sent.length, 1);
  });

  it('is asked once it is done with another message, which takes a moment', async () => {
    const old = new FakeKernel();
    old.supportsSubshells = false;
    const [, { archive }] = await training('reload-mid-run', 4, old);
    old.become('busy');
    void archive.refresh();
    await settle();
    assert.equal(old.comms.at(-1)?.targetName, COMMAND_TARGET);
    old.become('idle');
    await settle();
    assert.deepEqual(
      old.comm(RECORD_TARGET).sent.map(({ name }) => name),
      ['list_runs']
    );
    assert.equal(archive.error, null);
  });
});

describe('A detached run', () => {
  it('goes on alone when its kernel ends, and can be attached to', async () => {
    const [kernel, { controls, connection }, model] = await training(
      'reload-mid-run',
      4
    );
    const { run } = connection.state;
    assert.ok(run);
    connection.state.run = { ...run, detached: true };
    kernel.become('restarting');
    assert.equal(connection.state.run.phase, 'alone');
    assert.equal(connection.state.running, false);
    assert.equal(controls.obstacle('stop_run'), 'run-alone');
    const empty = recorded('digits-two-engines')[0];
    assert.ok(empty?.type === 'snapshot');
    const other = { run_id: 'run-2', ended: true };
    const tell = (...detached: { run_id: string; ended: boolean }[]): void => {
      connection.state.apply({ ...empty, run: null, detached });
    };
    tell({ run_id: run.run_id, ended: false }, other);
    assert.equal(connection.state.run.phase, 'alone');
    assert.deepEqual(connection.state.strays, [other]);
    tell(other);
    assert.equal(connection.state.run.phase, 'lost', 'it has ended');
    model.dispose();
  });
});
