import { Token } from '@lumino/coreutils';
import type { TrainingModel } from './model/training';

/** The training of the current notebook's kernel, for other extensions too. */
export type ITrainingModel = TrainingModel;

export const ITrainingModel = new Token<ITrainingModel>(
  'jupyter-dtrain:ITrainingModel',
  "The cluster and the run of the current notebook's kernel."
);
