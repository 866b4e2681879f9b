import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { INotebookTracker } from '@jupyterlab/notebook';
import { Signal } from '@lumino/signaling';
import { followCurrentKernel } from '../src/model/currentKernel';
import { shutDown } from '../src/model/shutDown';
import { TrainingModel } from '../src/model/training';
import { COMMAND_TARGET, TELEMETRY_TARGET } from '../src/protocol';
import { FakeKernel, recorded, settle } from './fakes';
import { training } from './trainings';

describe('Stop', () => {
  it('stops a run, and cannot be pressed twice', async () => {
    const [kernel, { controls }] = await training('reload-mid-run', 4);
    assert.equal(controls.obstacle('stop_run'), null);
    const sent = controls.send('stop_run');
    assert.equal(controls.stopping, true);
    assert.equal(controls.obstacle('stop_run'), 'run-stopping');
    kernel.comm(COMMAND_TARGET).reply(true, 'stopping');
    await sent;
    assert.equal(controls.stopping, true, 'until the run has ended');
    kernel
      .comm(TELEMETRY_TARGET)
      .receive(...recorded('reload-mid-run').slice(4));
    assert.equal(controls.stopping, false);
    assert.equal(controls.obstacle('stop_run'), 'run-ended');
    assert.equal(controls.failure, null);
  });

  it('can be pressed again after it was refused', async () => {
    const [kernel, { controls }] = await training('reload-mid-run', 4);
    const sent = controls.send('stop_run');
    kernel.comm(COMMAND_TARGET).reply(false, 'no engine answered');
    await sent;
    assert.equal(controls.obstacle('stop_run'), null);
    assert.deepEqual(controls.failure, {
      command: 'stop_run',
      reason: 'refused',
      message: 'no engine answered',
      busy: false
    });
  });

  it('has nothing to stop before the first run', async () => {
    const [, { controls }] = await training('digits-two-engines', 1);
    assert.equal(controls.obstacle('stop_run'), 'no-run');
  });

  it('cannot act when the kernel is gone, and the run with it', async () => {
    const [kernel, { controls }] = await training('reload-mid-run', 4);
    kernel.become('dead');
    assert.equal(controls.obstacle('stop_run'), 'run-ended');
    assert.equal(controls.obstacle('stop_cluster'), 'gone');
  });
});

describe('Restart of an engine', () => {
  it('can be asked for during a run and between runs', async () => {
    const [kernel, { controls }] = await training('reload-mid-run', 4);
    assert.equal(controls.obstacle('restart_engine'), null);
    const sent = controls.send('restart_engine', { rank: 1 });
    assert.equal(controls.obstacle('restart_engine'), 'sent');
    assert.equal(kernel.comm(COMMAND_TARGET).sent[0]?.rank, 1);
    kernel.comm(COMMAND_TARGET).reply(true, 'It starts anew.');
    await sent;
    assert.equal(controls.answer?.message, 'It starts anew.');
    kernel
      .comm(TELEMETRY_TARGET)
      .receive(...recorded('reload-mid-run').slice(4));
    assert.equal(controls.obstacle('restart_engine'), null);
  });

  it('has nothing to restart where there are no engines', async () => {
    const [kernel, { controls }] = await training('reload-mid-run', 4);
    kernel.comm(TELEMETRY_TARGET).receive({
      type: 'cluster_update',
      phase: 'stopped',
      engines: [],
      lost_hosts: [],
      detail: ''
    });
    assert.equal(controls.obstacle('restart_engine'), 'cluster-stopped');
  });
});

describe('Stopping all of a kernel', () => {
  it('waits for the end of the run before the engines go', async () => {
    const [kernel, one, model] = await training('reload-mid-run', 4);
    const names = (): unknown[] =>
      kernel.comm(COMMAND_TARGET).sent.map(({ name }) => name);
    assert.deepEqual(model.all, [one]);
    const done = shutDown(one);
    kernel.comm(COMMAND_TARGET).reply(true, 'stopping');
    await settle();
    assert.deepEqual(names(), ['stop_run']);
    kernel
      .comm(TELEMETRY_TARGET)
      .receive(...recorded('reload-mid-run').slice(4));
    await settle();
    assert.deepEqual(names(), ['stop_run', 'stop_cluster']);
    kernel.comm(COMMAND_TARGET).reply(true, 'stopping');
    await done;
  });
});

describe('Pause', () => {
  const told = recorded('reload-mid-run').find(
    update => update.type === 'run_update' && update.phase === 'running'
  );
  assert.ok(told?.type === 'run_update');
  const run = told;

  it('is on its way until all ranks wait, and ends with Go on', async () => {
    const [kernel, { controls, connection }] = await training(
      'reload-mid-run',
      4
    );
    const receive = (phase: typeof run.phase): void => {
      const now = { ...run, run_id: connection.state.run?.run_id ?? '' };
      kernel.comm(TELEMETRY_TARGET).receive({ ...now, phase });
    };
    assert.equal(controls.obstacle('resume_run'), 'run-not-paused');
    const sent = controls.send('pause_run');
    assert.equal(controls.pausing, true);
    assert.equal(controls.obstacle('pause_run'), 'run-pausing');
    kernel.comm(COMMAND_TARGET).reply(true, 'Pausing');
    await sent;
    assert.equal(controls.pausing, true, 'until the ranks have said so');
    receive('paused');
    assert.equal(controls.pausing, false);
    assert.equal(controls.obstacle('pause_run'), 'run-paused');
    assert.equal(controls.obstacle('resume_run'), null);
    assert.equal(controls.obstacle('stop_run'), null, 'a pause can be left so');

    const resumed = controls.send('resume_run');
    kernel.comm(COMMAND_TARGET).reply(true, 'The run goes on.');
    await resumed;
    receive('running');
    assert.equal(controls.pausing, false, 'the first pause is over');
    assert.equal(controls.obstacle('pause_run'), null);
  });

  it('says what the kernel said to the last command alone', async () => {
    const [kernel, { controls }] = await training('reload-mid-run', 4);
    const sent = controls.send('checkpoint_now');
    kernel.comm(COMMAND_TARGET).reply(true, 'It is written soon.');
    await sent;
    assert.deepEqual(controls.answer, {
      command: 'checkpoint_now',
      message: 'It is written soon.',
      done: null
    });
    const refused = controls.send('pause_run');
    kernel.comm(COMMAND_TARGET).reply(false, 'The run is stopping.');
    await refused;
    assert.equal(controls.answer, null);
    assert.equal(controls.failure?.message, 'The run is stopping.');
    assert.equal(controls.pausing, false);
  });

  it('has nothing to act on when the run has ended', async () => {
    const [, { controls }] = await training('digits-two-engines');
    for (const command of [
      'pause_run',
      'resume_run',
      'checkpoint_now'
    ] as const) {
      assert.equal(controls.obstacle(command), 'run-ended');
    }
  });
});

describe('the engines', () => {
  it('can be started when there are none', async () => {
    const [, { controls }] = await training('digits-two-engines', 1);
    assert.equal(controls.obstacle('start_cluster'), null);
    assert.equal(controls.obstacle('stop_cluster'), 'cluster-stopped');
  });

  it('cannot be started or stopped while they start', async () => {
    const [, { controls }] = await training('digits-two-engines', 2);
    assert.equal(controls.obstacle('start_cluster'), 'cluster-changing');
    assert.equal(controls.obstacle('stop_cluster'), 'cluster-changing');
  });

  it('cannot be stopped under a run', async () => {
    const [, { controls }] = await training('reload-mid-run', 4);
    assert.equal(controls.obstacle('stop_cluster'), 'run-active');
  });

  it('can be stopped after a run', async () => {
    const [, { controls }] = await training('digits-two-engines');
    assert.equal(controls.obstacle('stop_cluster'), null);
    assert.equal(controls.obstacle('start_cluster'), 'cluster-running');
  });
});

describe('the current notebook', () => {
  function notebook(): {
    tracker: INotebookTracker;
    session: {
      session: { kernel: unknown } | null;
      isReady: boolean;
      hasNoKernel: boolean;
      kernelChanged: Signal<object, void>;
      ready: Promise<void>;
      become: () => void;
    };
    open: () => void;
  } {
    const tracker = {
      currentWidget: null as unknown,
      currentChanged: new Signal<object, void>({})
    };
    const session = {
      session: null as { kernel: unknown } | null,
      isReady: false,
      hasNoKernel: false,
      kernelChanged: new Signal<object, void>({}),
      statusChanged: new Signal<object, void>({}),
      ready: Promise.resolve(),
      become(): void {
        session.kernelChanged.emit();
      }
    };
    return {
      tracker: tracker as unknown as INotebookTracker,
      session,
      open: () => {
        tracker.currentWidget = { sessionContext: session };
        tracker.currentChanged.emit();
      }
    };
  }

  it('is not said to be missing while its kernel starts', async () => {
    const { tracker, session, open } = notebook();
    const told: string[] = [];
    followCurrentKernel(tracker, (kernel, absence) => {
      told.push(kernel === null ? absence : 'kernel');
    });
    open();
    await settle();
    session.session = { kernel: {} };
    session.isReady = true;
    session.become();
    assert.deepEqual(told, ['starting', 'starting', 'kernel']);
  });

  it('may have no kernel', async () => {
    const { tracker, session, open } = notebook();
    let last = '';
    followCurrentKernel(tracker, (_, absence) => {
      last = absence;
    });
    open();
    session.isReady = session.hasNoKernel = true;
    await settle();
    assert.equal(last, 'no-kernel');
  });
});

describe('the end of a run', () => {
  it('is told once, and not of runs that had ended before', async () => {
    const [kernel, , model] = await training('reload-mid-run', 4);
    const told: string[] = [];
    model.runEnds.ended.connect((_, run) => told.push(run.phase));
    const rest = recorded('reload-mid-run').slice(4);
    kernel.comm(TELEMETRY_TARGET).receive(...rest);
    kernel.comm(TELEMETRY_TARGET).receive(...rest);
    kernel.become('restarting');
    assert.deepEqual(told, ['stopped']);
  });

  it('is told of a run that its kernel took along', async () => {
    const [kernel, , model] = await training('reload-mid-run', 4);
    const told: string[] = [];
    model.runEnds.ended.connect((_, run) => told.push(run.phase));
    kernel.become('autorestarting');
    assert.deepEqual(told, ['lost']);
  });
});

describe('the model', () => {
  it('keeps what it knows of a notebook that is no longer current', async () => {
    const [kernel, first, model] = await training('digits-two-engines', 8);
    const other = new FakeKernel();
    model.follow(other.link);
    assert.notEqual(model.current, first);
    kernel
      .comm(TELEMETRY_TARGET)
      .receive(...recorded('digits-two-engines').slice(8));
    model.follow(kernel.link);
    assert.equal(model.current, first);
    assert.equal(first.connection.state.run?.phase, 'finished');
    model.dispose();
  });

  it('has nothing to show without a kernel', () => {
    const model = new TrainingModel();
    let changes = 0;
    model.changed.connect(() => (changes += 1));
    model.follow(null);
    assert.equal(model.current, null);
    assert.equal(changes, 1);
  });
});
