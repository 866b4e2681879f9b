/**
 * The page of runs in the main area: the table of all, and below it the charts
 * of those that are selected, what tells them apart, or all of one.
 *
 * It asks the kernel of the current notebook, on the channel that the sidebar
 * uses. What the kernel tells many times a second draws charts, and no table.
 */

import type { IThemeManager } from '@jupyterlab/apputils';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import * as React from 'react';
import { PlotOptions } from '../model/plotOptions';
import type { Cause, ITraining, TrainingModel } from '../model/training';
import { PageView } from './pageView';
import { RunPlots } from './runPlots';

export class RunsPage extends ReactWidget {
  constructor(
    private readonly _model: TrainingModel,
    private readonly _trans: TranslationBundle,
    private readonly _themes: IThemeManager | null
  ) {
    super();
    this.addClass('jp-dtrain-page');
    this.node.dataset.testid = 'jp-dtrain-page';
    const ofDevices = new PlotOptions();
    ofDevices.xKind = 'time';
    this._charts = new RunPlots({
      plot: new PlotOptions(),
      trans: _trans,
      runs: () => this._model.current?.page.curveRuns ?? [],
      details: () => this._model.current?.page.archive.details ?? null,
      hasTools: true
    });
    this._devices = new RunPlots({
      plot: ofDevices,
      trans: _trans,
      runs: () =>
        (this._model.current?.page.devices ?? []).map(run => ({
          ...run,
          name: _trans.__('Rank %1', run.name)
        })),
      details: () => null,
      hasTools: false
    });
    _model.changed.connect(this._onChanged, this);
    _themes?.themeChanged.connect(this._onTheme, this);
  }

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._model.changed.disconnect(this._onChanged, this);
    this._themes?.themeChanged.disconnect(this._onTheme, this);
    this._charts.dispose();
    this._devices.dispose();
    super.dispose();
  }

  /** Ask the kernel for the runs again. */
  refresh(): void {
    const training = this._model.current;
    if (training?.connection.canCommand === true) {
      void training.page.refresh();
    }
  }

  /** Save the table as it is. */
  save(): void {
    this._save();
  }

  protected render(): React.ReactElement {
    const trans = this._trans;
    const training = this._model.current;
    if (training?.connection.status !== 'connected') {
      return (
        <p className="jp-dtrain-hint">
          {trans.__(
            'Run %1 in a notebook to see its runs here.',
            '%load_ext jupyter_dtrain'
          )}
        </p>
      );
    }
    return (
      <PageView
        training={training}
        charts={this._charts}
        devices={this._devices}
        onSave={save => {
          this._save = save;
        }}
        trans={trans}
      />
    );
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.refresh();
    this._charts.hurry();
  }

  private _onChanged(_: TrainingModel, cause: Cause): void {
    const training = this._model.current;
    const { connection } = training ?? {};
    const occasion = JSON.stringify([
      connection?.status,
      connection?.canCommand,
      connection?.state.run?.run_id,
      connection?.state.running,
      connection?.state.trialCount?.ended,
      connection?.state.trials.length
    ]);
    const isNew = occasion !== this._occasion || training !== this._training;
    if (isNew) {
      this._occasion = occasion;
      this._training = training;
      if (this.isVisible) {
        this.refresh();
      }
    }
    if (isNew || cause === 'action') {
      this.update();
      this._devices.hurry();
    }
    const { page } = training ?? {};
    const isChosen = page?.ids !== this._ids;
    this._ids = page?.ids;
    if (!isNew && cause === 'telemetry') {
      this._charts.schedule();
    } else if (isChosen || page?.isFetching !== true) {
      this._charts.hurry();
    } else {
      // The curves of fifty runs come one after the other: with each, all charts would be drawn anew.
      this._charts.scheduleSoon();
    }
  }

  private _onTheme(): void {
    this._charts.restyle();
    this._devices.restyle();
  }

  private readonly _charts: RunPlots;
  private readonly _devices: RunPlots;
  private _occasion = '';
  private _ids: readonly string[] | undefined;
  private _training: ITraining | null = null;
  private _save: () => void = () => undefined;
}
