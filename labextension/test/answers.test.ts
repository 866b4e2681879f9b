import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { TrainingModel } from '../src/model/training';
import {
  COMMAND_TARGET,
  TELEMETRY_TARGET,
  type CommandName,
  type IRunUpdate
} from '../src/protocol';
import { FakeKernel, recorded, settle } from './fakes';

/** A run that goes on: commands about it, and what it tells. */
class GoingRun {
  async begin(): Promise<void> {
    this._model.follow(this._kernel.link);
    await settle();
    this._kernel
      .comm(TELEMETRY_TARGET)
      .receive(...recorded('reload-mid-run').slice(0, 4));
    await settle();
  }

  async ask(command: CommandName, step?: number): Promise<void> {
    const sent = this._model.current?.controls.send(command, { step });
    this._kernel.comm(COMMAND_TARGET).reply(true, 'It is about to.');
    await sent;
  }

  tell(changes: Partial<IRunUpdate>): void {
    const run = this._model.current?.connection.state.run;
    assert.ok(run);
    this._kernel
      .comm(TELEMETRY_TARGET)
      .receive({ ...run, type: 'run_update', phase: 'running', ...changes });
  }

  /** The step that the answer says is done. */
  get done(): number | null {
    const answer = this._model.current?.controls.answer;
    assert.ok(answer);
    return answer.done;
  }

  private readonly _kernel = new FakeKernel();
  private readonly _model = new TrainingModel();
}

describe('the answer to a command about a run', () => {
  it('says when the checkpoint is on disk', async () => {
    const run = new GoingRun();
    await run.begin();
    run.tell({ step: 50 });
    await run.ask('checkpoint_now');
    run.tell({ step: 55 });
    assert.equal(run.done, null);
    run.tell({ step: 60, checkpoint: 58 });
    assert.equal(run.done, 58);
    run.tell({ step: 70, checkpoint: 68 });
    assert.equal(run.done, 58, 'not one of later');
  });

  it('says when the run has gone back', async () => {
    const run = new GoingRun();
    await run.begin();
    run.tell({ step: 70, checkpoint: 58 });
    await run.ask('roll_back', 58);
    run.tell({ step: 72 });
    assert.equal(run.done, null);
    run.tell({ step: 58 });
    assert.equal(run.done, 58);
    run.tell({ step: 90 });
    assert.equal(run.done, 58);
  });
});
