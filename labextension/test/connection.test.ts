import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it, mock } from 'node:test';
import { Connection } from '../src/model/connection';
import {
  COMMAND_TARGET,
  PROTOCOL_VERSION,
  TELEMETRY_TARGET,
  type ISnapshot
} from '../src/protocol';
import { FakeKernel, recorded, settle } from './fakes';

const SNAPSHOT = recorded('digits-two-engines')[0] as ISnapshot;

beforeEach(() => {
  mock.timers.enable({ apis: ['setTimeout'] });
});

afterEach(() => {
  mock.timers.reset();
});

async function connected(): Promise<[FakeKernel, Connection]> {
  const kernel = new FakeKernel();
  const connection = new Connection(kernel.link);
  await settle();
  kernel.comm(TELEMETRY_TARGET).receive(SNAPSHOT);
  await settle();
  return [kernel, connection];
}

async function absent(): Promise<[FakeKernel, Connection]> {
  const kernel = new FakeKernel();
  const connection = new Connection(kernel.link);
  await settle();
  kernel.comm(TELEMETRY_TARGET).closedByKernel();
  return [kernel, connection];
}

describe('a kernel with the extension', () => {
  it('is connected by its snapshot, with a comm of its own for commands', async () => {
    const [kernel, connection] = await connected();
    assert.equal(connection.status, 'connected');
    assert.equal(connection.canCommand, true);
    assert.deepEqual(
      kernel.comms.map(comm => comm.targetName),
      [TELEMETRY_TARGET, COMMAND_TARGET]
    );
  });

  it('says so when its state is there', async () => {
    const kernel = new FakeKernel();
    const connection = new Connection(kernel.link);
    await settle();
    const seen: unknown[] = [];
    connection.changed.connect(({ status, state }) => {
      seen.push([status, state.cluster.phase]);
    });
    const cluster = { ...SNAPSHOT.cluster, phase: 'running' as const };
    kernel.comm(TELEMETRY_TARGET).receive({ ...SNAPSHOT, cluster });
    assert.deepEqual(seen[0], ['connected', 'running']);
  });

  it('gets a comm that is opened after its subshell has started', async () => {
    const kernel = new FakeKernel();
    kernel.subshells = false;
    const connection = new Connection(kernel.link);
    await settle();
    const comm = kernel.comm(TELEMETRY_TARGET);
    assert.equal(comm.opened, false);
    comm.started.resolve();
    await settle();
    assert.equal(comm.opened, true);
    assert.equal(kernel.shellMessages[0]?.subshell, comm.subshellId);
    assert.equal(connection.status, 'waiting');
  });

  it('plays a recorded run', async () => {
    const [kernel, connection] = await connected();
    let changes = 0;
    connection.changed.connect(() => (changes += 1));
    const updates = recorded('digits-two-engines').slice(1);
    kernel.comm(TELEMETRY_TARGET).receive(...updates);
    assert.equal(connection.state.run?.phase, 'finished');
    assert.equal(changes, 1, 'one change for one batch');
  });

  it('answers a command', async () => {
    const [kernel, connection] = await connected();
    const answer = connection.send('start_cluster', { num_engines: 3 });
    const comm = kernel.comm(COMMAND_TARGET);
    assert.equal(comm.sent[0]?.name, 'start_cluster');
    assert.equal(comm.sent[0].num_engines, 3);
    comm.reply(true, 'started 3 engines');
    assert.equal((await answer)?.message, 'started 3 engines');
  });

  it('refuses a command with its reason', async () => {
    const [kernel, connection] = await connected();
    const answer = connection.send('stop_run');
    kernel.comm(COMMAND_TARGET).reply(false, 'nothing is running');
    await assert.rejects(answer, {
      reason: 'refused',
      message: 'nothing is running'
    });
  });

  it('fails a command that it does not answer in ten seconds', async () => {
    const [, connection] = await connected();
    const answer = connection.send('stop_run');
    mock.timers.tick(10_000);
    await assert.rejects(answer, { reason: 'silent' });
  });

  it('fails a command at once when it restarts', async () => {
    const [kernel, connection] = await connected();
    const answer = connection.send('stop_run');
    kernel.become('restarting');
    await assert.rejects(answer, { reason: 'closed' });
  });
});

describe('a kernel without the extension', () => {
  it('is told nothing more on a comm that it has closed', async () => {
    const [kernel] = await absent();
    await settle();
    assert.deepEqual(
      kernel.shellMessages.map(message => message.type),
      ['comm_open']
    );
  });

  it('is asked again after a cell that may have loaded it', async () => {
    const [kernel, connection] = await absent();
    assert.equal(connection.status, 'absent');
    kernel.execute('%load_ext jupyter_dtrain');
    mock.timers.tick(300);
    await settle();
    assert.equal(kernel.comms.length, 2);
    kernel.comm(TELEMETRY_TARGET).receive(SNAPSHOT);
    assert.equal(connection.status, 'connected');
  });

  it('is asked again where it answered before such a cell was through', async () => {
    const [kernel, connection] = await absent();
    connection.eager = true;
    kernel.execute('1 + 1');
    const end = kernel.begin('%load_ext jupyter_dtrain');
    mock.timers.tick(300);
    await settle();
    assert.equal(kernel.comms.length, 2);
    kernel.comm(TELEMETRY_TARGET).closedByKernel();
    kernel.answerOnSubshell();
    end();
    mock.timers.tick(300);
    await settle();
    assert.equal(kernel.comms.length, 3);
    kernel.comm(TELEMETRY_TARGET).receive(SNAPSHOT);
    assert.equal(connection.status, 'connected');
  });

  it('is asked once for many cells', async () => {
    const [kernel] = await absent();
    kernel.execute('import jupyter_dtrain');
    kernel.execute('%load_ext jupyter_dtrain');
    kernel.execute('%distribute status');
    mock.timers.tick(300);
    await settle();
    assert.equal(kernel.comms.length, 2);
  });

  it('is left alone by other cells, unless somebody is looking', async () => {
    const [kernel, connection] = await absent();
    kernel.execute('1 + 1');
    mock.timers.tick(300);
    await settle();
    assert.equal(kernel.comms.length, 1);
    connection.eager = true;
    kernel.execute('1 + 1');
    mock.timers.tick(300);
    await settle();
    assert.equal(kernel.comms.length, 2);
  });

  it('cannot be commanded', async () => {
    const [, connection] = await absent();
    await assert.rejects(connection.send('stop_run'), { reason: 'closed' });
  });

  it('is asked ever more seldom while a cell runs that may load it', async () => {
    const [kernel, connection] = await absent();
    const end = kernel.begin('%load_ext jupyter_dtrain\n%distribute attach');
    const asked: number[] = [];
    for (let second = 1; second <= 16; second++) {
      const before = kernel.comms.length;
      mock.timers.tick(1000);
      await settle();
      if (kernel.comms.length > before) {
        asked.push(second);
        kernel.comm(TELEMETRY_TARGET).closedByKernel();
        kernel.answerOnSubshell();
      }
    }
    assert.deepEqual(asked, [1, 3, 7, 15]);
    end();
    mock.timers.tick(300);
    await settle();
    assert.equal(kernel.comms.length, 1 + asked.length + 1);
    kernel.comm(TELEMETRY_TARGET).receive(SNAPSHOT);
    assert.equal(connection.status, 'connected');
    mock.timers.tick(60_000);
    await settle();
    assert.equal(kernel.comms.length, 1 + asked.length + 2, 'with commands');
  });

  it('of another language is never asked', async () => {
    const kernel = new FakeKernel();
    kernel.language = 'R';
    const connection = new Connection(kernel.link);
    await settle();
    assert.equal(connection.status, 'absent');
    assert.equal(kernel.comms.length, 0);
  });
});

describe('a page that is loaded while a cell runs', () => {
  it('asks for a subshell on the control channel and opens its comms there', async () => {
    const kernel = new FakeKernel();
    kernel.status = 'busy';
    // The kernel answers what it is after the cell only.
    kernel.info = new Promise(() => undefined);
    const connection = new Connection(kernel.link);
    await settle();
    assert.equal(kernel.comms.length, 0);
    mock.timers.tick(2000);
    await settle();
    assert.deepEqual(kernel.controlMessages, ['create_subshell_request']);
    assert.deepEqual(kernel.shellMessages, [
      { type: 'comm_open', subshell: 'own-subshell' }
    ]);
    kernel
      .comm(TELEMETRY_TARGET)
      .receive(...recorded('reload-mid-run').slice(0, 4));
    assert.equal(connection.status, 'connected');
    assert.equal(connection.state.series.get('loss')?.length, 45);
    await settle();
    mock.timers.tick(2000);
    await settle();
    assert.equal(connection.canCommand, true);
    void connection.send('stop_run');
    assert.deepEqual(kernel.shellMessages.pop(), {
      type: 'comm_msg',
      subshell: 'own-subshell'
    });
  });
});

describe('a kernel of another version', () => {
  it('is a mismatch that names both versions', async () => {
    const kernel = new FakeKernel();
    const connection = new Connection(kernel.link);
    await settle();
    const version = PROTOCOL_VERSION + 1;
    kernel.comm(TELEMETRY_TARGET).receive({ ...SNAPSHOT, version });
    assert.equal(connection.status, 'mismatch');
    assert.equal(connection.kernelVersion, version);
    assert.equal(connection.canCommand, false);
    assert.equal(connection.state.run, null);
  });
});

describe('a kernel that restarts', () => {
  it('shows its last run as lost, and connects again', async () => {
    const [kernel, connection] = await connected();
    kernel
      .comm(TELEMETRY_TARGET)
      .receive(...recorded('reload-mid-run').slice(0, 4));
    assert.equal(connection.state.running, true);
    kernel.become('restarting');
    assert.equal(connection.status, 'gone');
    assert.equal(connection.state.run?.phase, 'lost');
    kernel.become('busy');
    kernel.connect('connecting');
    kernel.connect('connected');
    kernel.become('idle');
    mock.timers.tick(300);
    await settle();
    assert.deepEqual(
      kernel.comms.map(comm => comm.targetName),
      [TELEMETRY_TARGET, COMMAND_TARGET, TELEMETRY_TARGET]
    );
    kernel.comm(TELEMETRY_TARGET).closedByKernel();
    assert.equal(connection.status, 'absent');
    assert.equal(connection.state.run.phase, 'lost');
  });
});

describe('a connection that breaks', () => {
  it('is opened anew and misses no point', async () => {
    const [kernel, connection] = await connected();
    const old = kernel.comm(TELEMETRY_TARGET);
    old.receive(...recorded('reload-mid-run').slice(0, 2));
    kernel.connect('connecting');
    assert.equal(connection.status, 'waiting');
    assert.equal(connection.canCommand, false);
    kernel.connect('connected');
    await settle();
    assert.equal(old.isDisposed, true, 'after the kernel has closed it');
    const fresh = kernel.comm(TELEMETRY_TARGET);
    assert.notEqual(fresh, old);
    fresh.receive(...recorded('reload-mid-run').slice(1));
    assert.equal(connection.status, 'connected');
    assert.equal(connection.state.series.get('loss')?.length, 53);
  });
});

describe('a connection that is disposed', () => {
  it('closes its comms and drops what still comes', async () => {
    const [kernel, connection] = await connected();
    connection.dispose();
    await settle();
    assert.deepEqual(
      kernel.shellMessages.slice(-2).map(message => message.type),
      ['comm_close', 'comm_close']
    );
    assert.ok(kernel.comms.every(comm => comm.isDisposed));
    kernel
      .comm(TELEMETRY_TARGET)
      .receive(...recorded('reload-mid-run').slice(0, 2));
    assert.equal(connection.state.run, null);
  });
});
