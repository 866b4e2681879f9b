/** The run in the status bar: how far, how well; a click shows the sidebar. */

import { Signal, type ISignal } from '@lumino/signaling';
import * as React from 'react';
import { formatCount, formatLoss } from './format';
import { runPhaseText } from './texts';
import { View } from './view';
import type { TrainingModel } from '../model/training';
import type { TranslationBundle } from '@jupyterlab/translation';

/** Milliseconds between two drawings: it is at the edge of what is looked at. */
const INTERVAL_MS = 1000;

export class StatusItem extends View {
  constructor(
    model: TrainingModel,
    trans: TranslationBundle,
    private readonly _show: () => void
  ) {
    super('jp-dtrain-status-item', model, trans, INTERVAL_MS);
    model.anyChanged.connect(this._look, this);
  }

  override dispose(): void {
    this.model.anyChanged.disconnect(this._look, this);
    super.dispose();
  }

  /** Whether there is anything to say. */
  get isActive(): boolean {
    return (this.model.current?.connection.state.run ?? null) !== null;
  }

  /** Emitted when that changes, and not with all that the kernel tells: the status bar draws the item anew each time. */
  get activeChanged(): ISignal<this, void> {
    return this._activeChanged;
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

  private _look(): void {
    if (this.isActive !== this._wasActive) {
      this._wasActive = this.isActive;
      this._activeChanged.emit();
    }
  }

  private readonly _activeChanged = new Signal<this, void>(this);
  private _wasActive = false;
}
