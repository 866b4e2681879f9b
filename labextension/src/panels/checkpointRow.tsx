/** One checkpoint: a row that unfolds to what can be done with it. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Checkpoint } from '../model/checkpoints';
import { loadCode, resumeCode } from '../model/code';
import type { ITraining } from '../model/training';
import { Control } from './control';
import { Facts } from './facts';
import { formatAge, formatBytes, formatCount, formatValue } from './format';
import { obstacleText } from './texts';

export interface ICheckpointRowProps {
  checkpoint: Checkpoint;
  isLast: boolean;
  isBest: boolean;
  opened: boolean;
  onToggle: () => void;
  training: ITraining;
  insertCell: (code: string) => void;
  trans: TranslationBundle;
}

export function CheckpointRow(props: ICheckpointRowProps): React.ReactElement {
  const { checkpoint, isLast, isBest, opened, onToggle, trans } = props;
  const { step, epoch, loss, metric, num_bytes, time, pinned } = checkpoint;
  const marks = [
    isBest ? trans.__('best') : '',
    isLast ? trans.__('last') : '',
    pinned ? trans.__('pinned') : ''
  ].filter(Boolean);
  const facts = [
    loss === null ? '' : trans.__('loss %1', formatValue(loss)),
    metric === null || (metric === loss && checkpoint.metric_name === 'loss')
      ? ''
      : `${checkpoint.metric_name} ${formatValue(metric)}`,
    epoch === null ? '' : trans.__('epoch %1', formatValue(epoch)),
    formatBytes(num_bytes),
    trans.__('%1 ago', formatAge(Date.now() / 1000 - time))
  ];
  return (
    <li
      className="jp-dtrain-past-run"
      data-testid="jp-dtrain-checkpoint"
      data-step={step}
    >
      <div className="jp-dtrain-past-run-head">
        <button
          type="button"
          className="jp-dtrain-past-run-name"
          aria-expanded={opened}
          onClick={onToggle}
        >
          {trans.__('Step %1', formatCount(step))}
        </button>
        <ul className="jp-dtrain-tags" aria-label={trans.__('Marks')}>
          {marks.map(mark => (
            <li key={mark}>{mark}</li>
          ))}
        </ul>
      </div>
      <Facts className="jp-dtrain-checkpoint-facts" facts={facts} />
      {opened && <Actions {...props} />}
    </li>
  );
}

function Actions(props: ICheckpointRowProps): React.ReactElement {
  const { checkpoint, training, insertCell, trans } = props;
  const { checkpoints, controls, connection } = training;
  const { run_id, step, pinned } = checkpoint;
  const [deleting, setDeleting] = React.useState(false);
  const busy = checkpoints.busy
    ? trans.__('Wait for the previous command')
    : null;
  const foreign = trans.__('This run was not recorded by jupyter_dtrain');
  const obstacle = controls.obstacle('roll_back');
  const button = (
    id: string,
    label: string,
    hint: string,
    act: () => void,
    reason: string | null = busy
  ): React.ReactElement => (
    <Control
      label={label}
      hint={hint}
      testId={`jp-dtrain-checkpoint-${id}`}
      reason={reason}
      onClick={act}
    />
  );
  if (deleting) {
    return (
      <div className="jp-dtrain-controls jp-dtrain-checkpoint-actions">
        <span>{trans.__('Delete this checkpoint?')}</span>
        {button('delete-now', trans.__('Delete'), '', () => {
          void checkpoints.delete(checkpoint);
        })}
        {button('keep', trans.__('Cancel'), '', () => {
          setDeleting(false);
        })}
      </div>
    );
  }
  return (
    <div className="jp-dtrain-controls jp-dtrain-checkpoint-actions">
      {connection.state.running
        ? button(
            'roll-back',
            trans.__('Roll back'),
            trans.__('Continue the run from here, after the current step'),
            () => {
              void controls.send('roll_back', { run_id, step });
            },
            obstacle === null ? null : obstacleText(obstacle, trans)
          )
        : button(
            'resume',
            trans.__('Continue from here'),
            trans.__('Insert a cell that continues the run from here'),
            () => {
              insertCell(resumeCode(run_id, step) ?? '');
            },
            resumeCode(run_id, step) === null ? foreign : busy
          )}
      {button(
        'load',
        trans.__('Load'),
        trans.__('Insert a cell that loads this checkpoint'),
        () => {
          insertCell(loadCode(run_id, step) ?? '');
        },
        loadCode(run_id, step) === null ? foreign : busy
      )}
      {button(
        'pin',
        pinned ? trans.__('Unpin') : trans.__('Pin'),
        pinned
          ? trans.__('Unpin: --keep-checkpoints may then delete it')
          : trans.__('Keep this checkpoint until you delete it'),
        () => {
          void checkpoints.pin(checkpoint, !pinned);
        }
      )}
      {button(
        'export',
        trans.__('Export'),
        trans.__('Write its models as .safetensors files'),
        () => {
          void checkpoints.export(checkpoint);
        }
      )}
      {button(
        'delete',
        trans.__('Delete…'),
        trans.__('Delete this checkpoint'),
        () => {
          setDeleting(true);
        }
      )}
    </div>
  );
}
