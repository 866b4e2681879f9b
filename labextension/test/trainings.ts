/** A kernel's training as it is after a part of a recording. */

import assert from 'node:assert/strict';
import { TrainingModel, type ITraining } from '../src/model/training';
import { TELEMETRY_TARGET } from '../src/protocol';
import { FakeKernel, recorded, settle } from './fakes';

export async function training(
  recording: string,
  until?: number,
  kernel = new FakeKernel()
): Promise<[FakeKernel, ITraining, TrainingModel]> {
  const model = new TrainingModel();
  model.follow(kernel.link);
  await settle();
  const updates = recorded(recording).slice(0, until);
  kernel.comm(TELEMETRY_TARGET).receive(...updates);
  await settle();
  assert.ok(model.current);
  return [kernel, model.current, model];
}
