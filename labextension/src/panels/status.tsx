/** What to do when there is nothing to show: no kernel, no extension, … */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { NotebookCells } from '../cells';
import { LOAD_EXTENSION } from '../model/code';
import type { TrainingModel } from '../model/training';
import { Control } from './control';
import { absenceText, mismatchText } from './texts';
import { View } from './view';

export class StatusView extends View {
  constructor(
    id: string,
    model: TrainingModel,
    trans: TranslationBundle,
    private readonly _cells: NotebookCells
  ) {
    super(id, model, trans);
  }

  protected render(): React.ReactElement | null {
    const connection = this.model.current?.connection;
    const text = this._text();
    if (text === null) {
      return null;
    }
    return (
      <div
        className="jp-dtrain-status"
        data-testid="jp-dtrain-status"
        data-status={connection?.status ?? this.model.absence}
        role="status"
      >
        {text}
      </div>
    );
  }

  private _text(): React.ReactElement | null {
    const { trans } = this;
    const connection = this.model.current?.connection;
    switch (connection?.status) {
      case undefined:
        return <p>{absenceText(this.model.absence, trans)}</p>;
      case 'connected':
        return null;
      case 'waiting':
        return <p>{trans.__('Waiting for the kernel…')}</p>;
      case 'gone':
        return <p>{trans.__('The kernel is not running.')}</p>;
      case 'absent':
        return (
          <>
            <p>
              {trans.__('To train on multiple processes, load the extension:')}
            </p>
            <pre>{LOAD_EXTENSION}</pre>
            <div className="jp-dtrain-controls">
              <Control
                label={trans.__('Insert and run')}
                hint={trans.__(
                  'Insert this cell below the active one and run it'
                )}
                testId="jp-dtrain-load"
                reason={null}
                onClick={() => {
                  this._cells.insertAndRun(LOAD_EXTENSION);
                }}
              />
            </div>
            <p>
              {trans.__('Then put this on the first line of a training cell:')}
            </p>
            <pre>%%distribute</pre>
          </>
        );
      case 'mismatch':
        return (
          <p className="jp-dtrain-error-text">
            {mismatchText(connection.kernelVersion, trans)}
          </p>
        );
    }
  }
}
