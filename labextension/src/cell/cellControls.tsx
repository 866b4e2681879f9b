/** Pause and Stop, in the view of a run below its cell. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { RunControls } from '../model/controls';
import { Control } from '../panels/control';
import { failureText, obstacleText } from '../panels/texts';
import type { CommandName } from '../protocol';

export interface ICellControlsProps {
  controls: RunControls;
  paused: boolean;
  trans: TranslationBundle;
}

export function CellControls(props: ICellControlsProps): React.ReactElement {
  const { controls, paused, trans } = props;
  const { failure } = controls;
  const button = (
    command: CommandName,
    id: string,
    label: string,
    hint: string
  ): React.ReactElement => {
    const obstacle = controls.obstacle(command);
    return (
      <Control
        label={label}
        hint={hint}
        testId={`jp-dtrain-cell-${id}`}
        className={id === 'stop' ? 'jp-dtrain-stop' : ''}
        reason={obstacle === null ? null : obstacleText(obstacle, trans)}
        onClick={() => {
          void controls.send(command);
        }}
      />
    );
  };
  return (
    <span className="jp-dtrain-controls jp-dtrain-cell-controls">
      {failure !== null && (
        <span className="jp-dtrain-error-text" role="alert">
          {failureText(failure, trans)}
        </span>
      )}
      {paused
        ? button(
            'resume_run',
            'resume',
            trans.__('Resume'),
            trans.__('Resume training')
          )
        : button(
            'pause_run',
            'pause',
            controls.pausing ? trans.__('Pausing…') : trans.__('Pause'),
            trans.__('Pause after the current step')
          )}
      {button(
        'stop_run',
        'stop',
        controls.stopping ? trans.__('Stopping…') : trans.__('Stop'),
        trans.__('Stop after the current step and keep its weights')
      )}
    </span>
  );
}
