/** The run in the status bar: how far, how well; a click shows the sidebar. */

import * as React from 'react';
import { formatCount, formatLoss } from './format';
import { runPhaseText } from './texts';
import { View } from './view';
import type { TrainingModel } from '../model/training';
import type { TranslationBundle } from '@jupyterlab/translation';

export class StatusItem extends View {
  constructor(
    model: TrainingModel,
    trans: TranslationBundle,
    private readonly _show: () => void
  ) {
    super('jp-dtrain-status-item', model, trans);
  }

  protected render(): React.ReactElement | null {
    const { trans } = this;
    const training = this.model.current;
    const run = training?.connection.state.run ?? null;
    if (training === null || run === null) {
      return null;
    }
    const phase = training.controls.stopping ? 'stopping' : run.phase;
    const loss = formatLoss(run);
    const facts = [
      runPhaseText(phase, trans),
      run.step > 0 ? trans.__('step %1', formatCount(run.step)) : '',
      loss === null ? '' : trans.__('loss %1', loss)
    ].filter(Boolean);
    return (
      <button
        type="button"
        className="jp-dtrain-status-item"
        data-testid="jp-dtrain-status-item"
        data-phase={phase}
        title={trans.__('Show Distributed Training: %1', run.name)}
        onClick={this._show}
      >
        {facts.join(' · ')}
      </button>
    );
  }
}
