import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Checkpoints, type Checkpoint } from '../src/model/checkpoints';
import { formatAge, formatBytes } from '../src/panels/format';
import type { ICommand, IReply } from '../src/protocol';

function checkpoint(step: number, loss: number | null = null): Checkpoint {
  return {
    run_id: 'r1',
    step,
    place: 'line 3',
    epoch: null,
    loss,
    num_bytes: 1024,
    time: 1000,
    world_size: 2,
    pinned: false,
    best: false,
    metric_name: null,
    metric: null
  };
}

/** The steps of what is listed; `null` before it is. */
function steps({ list }: Checkpoints): number[] | null {
  return list?.map(({ step }) => step) ?? null;
}

/** A kernel with these checkpoints, which does what it is told. */
class Shelf {
  constructor(public list: Checkpoint[]) {}

  readonly asked: [string, Partial<ICommand>][] = [];
  refusal: string | null = null;

  readonly ask = (
    name: ICommand['name'],
    options: Partial<ICommand>
  ): Promise<IReply> => {
    this.asked.push([name, options]);
    if (this.refusal !== null && name !== 'list_checkpoints') {
      return Promise.reject(new Error(this.refusal));
    }
    if (name === 'delete_checkpoint') {
      this.list = this.list.filter(({ step }) => step !== options.step);
    }
    return Promise.resolve({
      type: 'reply',
      id: '1',
      ok: true,
      message: `done: ${name}`,
      runs: [],
      points: [],
      comparison: null,
      cell: null,
      checkpoints: this.list.map(one => ({ type: 'checkpoint_info', ...one })),
      free_bytes: 5000,
      paths: [],
      page: null,
      output: null
    });
  };
}

describe('the checkpoints of a run', () => {
  it('are listed with what is free; the best has the least loss', async () => {
    const shelf = new Shelf([
      checkpoint(30, 0.4),
      checkpoint(20, 0.2),
      checkpoint(10)
    ]);
    const checkpoints = new Checkpoints(shelf.ask);
    assert.equal(steps(checkpoints), null);
    await checkpoints.refresh('r1');
    assert.deepEqual(steps(checkpoints), [30, 20, 10]);
    assert.equal(checkpoints.freeBytes, 5000);
    assert.equal(checkpoints.best?.step, 20);
  });

  it('have no best where there is nothing to choose from', async () => {
    const checkpoints = new Checkpoints(
      new Shelf([checkpoint(20, 0.2), checkpoint(10)]).ask
    );
    await checkpoints.refresh('r1');
    assert.equal(checkpoints.best, null);
  });

  it('have the best by the metric that the run follows', async () => {
    const checkpoints = new Checkpoints(
      new Shelf([
        checkpoint(30, 0.2),
        { ...checkpoint(20, 0.4), best: true, metric: 0.9 },
        checkpoint(10, 0.3)
      ]).ask
    );
    await checkpoints.refresh('r1');
    assert.equal(checkpoints.best?.step, 20);
  });

  it('are listed anew after one was deleted', async () => {
    const shelf = new Shelf([checkpoint(20), checkpoint(10)]);
    const checkpoints = new Checkpoints(shelf.ask);
    await checkpoints.refresh('r1');
    const deleted = checkpoints.delete(checkpoint(20));
    assert.equal(checkpoints.busy, true);
    await deleted;
    assert.deepEqual(shelf.asked[1], [
      'delete_checkpoint',
      { run_id: 'r1', step: 20 }
    ]);
    assert.deepEqual(steps(checkpoints), [10]);
    assert.equal(checkpoints.answer, 'done: delete_checkpoint');
    assert.equal(checkpoints.busy, false);
  });

  it('stay when the kernel refuses, which says why', async () => {
    const shelf = new Shelf([checkpoint(20)]);
    const checkpoints = new Checkpoints(shelf.ask);
    await checkpoints.refresh('r1');
    shelf.refusal = 'safetensors is not installed';
    await checkpoints.export(checkpoint(20));
    assert.equal(checkpoints.error, 'safetensors is not installed');
    assert.equal(checkpoints.answer, null);
    assert.equal(steps(checkpoints)?.length, 1);
    shelf.refusal = null;
    await checkpoints.pin(checkpoint(20), true);
    assert.equal(checkpoints.error, null);
    assert.equal(shelf.asked.at(-2)?.[1].pinned, true);
  });

  it('of another run take the place of those of the last', async () => {
    const shelf = new Shelf([checkpoint(20)]);
    const checkpoints = new Checkpoints(shelf.ask);
    const late = checkpoints.refresh('r1');
    const now = checkpoints.refresh('r2');
    assert.equal(steps(checkpoints), null);
    await Promise.all([late, now]);
    assert.equal(checkpoints.runId, 'r2');
  });
});

describe('sizes and ages', () => {
  it('have a unit', () => {
    assert.equal(formatBytes(0), '0 B');
    assert.equal(formatBytes(1023), '1023 B');
    assert.equal(formatBytes(1536), '1.5 KiB');
    assert.equal(formatBytes(50 * 2 ** 30), '50 GiB');
    assert.equal(formatAge(-2), '0 s');
    assert.equal(formatAge(59.9), '59 s');
    assert.equal(formatAge(60), '1 min');
    assert.equal(formatAge(7300), '2 h');
    assert.equal(formatAge(3 * 86_400), '3 d');
  });
});
