/** The checkpoints of the run: what is on disk, and what can be done with it. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { ITraining, TrainingModel } from '../model/training';
import { CheckpointRow } from './checkpointRow';
import { formatBytes } from './format';
import { View } from './view';

/** Milliseconds between two lists while a run writes checkpoints and deletes old ones. */
const REFRESH_MS = 3000;

export class CheckpointsView extends View {
  constructor(
    id: string,
    model: TrainingModel,
    trans: TranslationBundle,
    private readonly _insertCell: (code: string) => void
  ) {
    super(id, model, trans);
  }

  protected render(): React.ReactElement | null {
    const training = this.model.current;
    const connected = training?.connection.status === 'connected';
    const runId = training?.connection.state.run?.run_id;
    return connected && runId !== undefined ? (
      <CheckpointsSection
        training={training}
        runId={runId}
        insertCell={this._insertCell}
        trans={this.trans}
      />
    ) : null;
  }
}

interface ISectionProps {
  training: ITraining;
  runId: string;
  insertCell: (code: string) => void;
  trans: TranslationBundle;
}

function CheckpointsSection(props: ISectionProps): React.ReactElement {
  const { training, runId, insertCell, trans } = props;
  const { checkpoints, connection } = training;
  const { running, run } = connection.state;
  const newest = run?.checkpoint ?? null;
  const canAsk = connection.canCommand;
  const [opened, setOpened] = React.useState<number | null>(null);
  React.useEffect(() => {
    if (!canAsk) {
      return;
    }
    void checkpoints.refresh(runId);
    if (!running) {
      return;
    }
    const timer = setInterval(() => {
      void checkpoints.refresh(runId);
    }, REFRESH_MS);
    return () => {
      clearInterval(timer);
    };
  }, [checkpoints, runId, canAsk, running, newest]);
  const list = checkpoints.runId === runId ? checkpoints.list : null;
  const { best, freeBytes, error, answer } = checkpoints;
  return (
    <section
      className="jp-dtrain-section"
      data-testid="jp-dtrain-checkpoints"
      aria-labelledby="jp-dtrain-checkpoints-title"
    >
      <header>
        <h2 id="jp-dtrain-checkpoints-title">{trans.__('Checkpoints')}</h2>
        {freeBytes !== null && (
          <span className="jp-dtrain-free" data-testid="jp-dtrain-free">
            {trans.__('%1 free', formatBytes(freeBytes))}
          </span>
        )}
      </header>
      {list === null && error === null && (
        <p className="jp-dtrain-hint">{trans.__('Reading checkpoints…')}</p>
      )}
      {list?.length === 0 && <None running={running} trans={trans} />}
      {list !== null && list.length > 0 && (
        <ul className="jp-dtrain-past-runs">
          {list.map((checkpoint, index) => (
            <CheckpointRow
              key={checkpoint.step}
              checkpoint={checkpoint}
              isLast={index === 0}
              isBest={checkpoint.step === best?.step}
              opened={opened === checkpoint.step}
              onToggle={() => {
                setOpened(opened === checkpoint.step ? null : checkpoint.step);
              }}
              training={training}
              insertCell={insertCell}
              trans={trans}
            />
          ))}
        </ul>
      )}
      {answer !== null && (
        <p
          className="jp-dtrain-hint jp-dtrain-answer"
          data-testid="jp-dtrain-checkpoint-answer"
          role="status"
        >
          {answer}
        </p>
      )}
      {error !== null && (
        <p className="jp-dtrain-error-text" role="alert">
          {error}
        </p>
      )}
    </section>
  );
}

interface INoneProps {
  running: boolean;
  trans: TranslationBundle;
}

function None({ running, trans }: INoneProps): React.ReactElement {
  if (running) {
    return (
      <p className="jp-dtrain-hint">
        {trans.__(
          'No checkpoints yet. They are written periodically; Checkpoint writes one now.'
        )}
      </p>
    );
  }
  const [before, after] = trans
    .__(
      'No checkpoints. They are deleted when the run finishes, unless pinned or %1 is set.',
      '%1' // stays, for the code
    )
    .split('%1');
  return (
    <p className="jp-dtrain-hint">
      {before}
      <code>--checkpoint-every</code>
      {after}
    </p>
  );
}
