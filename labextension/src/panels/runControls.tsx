/** The buttons of the run: pause it or let it go on, keep it on disk, stop it. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { RUN_COMMANDS } from '../model/controls';
import type { ITraining } from '../model/training';
import type { CommandName } from '../protocol';
import { Control } from './control';
import { formatCount } from './format';
import { answerText, failureText, obstacleText } from './texts';

export interface IRunControlsProps {
  training: ITraining;
  trans: TranslationBundle;
}

export function RunControls(props: IRunControlsProps): React.ReactElement {
  const { training, trans } = props;
  const { connection, controls } = training;
  const { run, running } = connection.state;
  const { answer, failure } = controls;
  const paused = run?.phase === 'paused';
  const told = !running
    ? obstacleText('run-ended', trans)
    : paused
      ? trans.__('Paused after step %1.', formatCount(run.step))
      : answer?.command === 'checkpoint_now' || answer?.command === 'roll_back'
        ? answerText(answer, trans)
        : connection.state.trialCount !== null
          ? trans.__('Stop ends all trials.')
          : trans.__('Stop keeps the weights of the last completed step.');
  const reason = (command: CommandName): string | null => {
    const obstacle = controls.obstacle(command);
    return obstacle === null ? null : obstacleText(obstacle, trans);
  };
  const button = (
    command: CommandName,
    label: string,
    hint: string,
    className = ''
  ): React.ReactElement => (
    <Control
      label={label}
      hint={hint}
      testId={`jp-dtrain-${command.replace('_run', '').replace('_', '-')}`}
      className={className}
      reason={reason(command)}
      onClick={() => {
        void controls.send(command);
      }}
    />
  );
  return (
    <>
      <div className="jp-dtrain-controls jp-dtrain-run-controls">
        {paused
          ? button(
              'resume_run',
              trans.__('Resume'),
              trans.__('Resume training')
            )
          : button(
              'pause_run',
              controls.pausing ? trans.__('Pausing…') : trans.__('Pause'),
              trans.__('Pause after the current step')
            )}
        {button(
          'checkpoint_now',
          trans.__('Checkpoint'),
          trans.__('Write a checkpoint to disk and keep it')
        )}
        {button(
          'stop_run',
          controls.stopping ? trans.__('Stopping…') : trans.__('Stop'),
          trans.__('Stop after the current step and keep its weights'),
          'jp-dtrain-stop'
        )}
      </div>
      <p
        className="jp-dtrain-hint"
        data-testid="jp-dtrain-run-answer"
        role="status"
      >
        {told}
      </p>
      {failure !== null &&
        RUN_COMMANDS.includes(failure.command) &&
        running && (
          <p className="jp-dtrain-error-text" role="alert">
            {failureText(failure, trans)}
          </p>
        )}
    </>
  );
}
