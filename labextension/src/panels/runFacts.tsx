/** How far a run is, how fast and how well: a bar and some numbers. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Run } from '../model/state';
import { formatCount, formatDuration, formatValue } from './format';

export interface IRunFactsProps {
  run: Run;
  /** Seconds since it began, until now or its end. */
  elapsed: number;
  running: boolean;
  trans: TranslationBundle;
}

export function RunFacts(props: IRunFactsProps): React.ReactElement {
  const { run, elapsed, running, trans } = props;
  return (
    <>
      <Progress run={run} running={running} trans={trans} />
      <dl className="jp-dtrain-numbers">
        <Stat
          name="loss"
          label={trans.__('Loss')}
          value={formatValue(run.loss)}
        />
        <Stat
          name="step"
          label={trans.__('Step')}
          value={formatCount(run.step)}
        />
        <Stat
          name="samples"
          label={trans.__('Samples/s')}
          value={formatCount(
            run.samples_per_second === 0 ? null : run.samples_per_second
          )}
        />
        <Stat
          name="learning-rate"
          label={trans.__('Learning rate')}
          value={formatValue(run.learning_rate)}
        />
        <Stat
          name="elapsed"
          label={trans.__('Elapsed')}
          value={formatDuration(elapsed)}
        />
        <Stat
          name="engines"
          label={trans.__('Engines')}
          value={String(run.world_size)}
        />
      </dl>
    </>
  );
}

interface IProgressProps {
  run: Run;
  running: boolean;
  trans: TranslationBundle;
}

/** Where the loader is; a bar where its length is known. */
function Progress(props: IProgressProps): React.ReactElement | null {
  const { run, running, trans } = props;
  const { epoch, batch, batches } = run;
  if (epoch === null) {
    return running ? <div className="jp-dtrain-bar jp-dtrain-waiting" /> : null;
  }
  const text =
    batch === null
      ? trans.__('Epoch %1', String(epoch))
      : batches === null
        ? trans.__('Epoch %1 · batch %2', String(epoch), String(batch))
        : trans.__(
            'Epoch %1 · batch %2 of %3',
            String(epoch),
            String(batch),
            String(batches)
          );
  const percent =
    batch === null || batches === null || batches === 0
      ? null
      : Math.min(100, (100 * batch) / batches);
  return (
    <div className="jp-dtrain-progress" data-testid="jp-dtrain-progress">
      <span>{text}</span>
      {percent !== null && (
        <div
          className="jp-dtrain-bar"
          role="progressbar"
          aria-label={trans.__('Progress of the epoch')}
          aria-valuemin={0}
          aria-valuemax={100}
          aria-valuenow={Math.round(percent)}
          aria-valuetext={text}
        >
          <div style={{ width: `${percent}%` }} />
        </div>
      )}
    </div>
  );
}

interface IStatProps {
  name: string;
  label: string;
  value: string;
}

function Stat({ name, label, value }: IStatProps): React.ReactElement {
  return (
    <div>
      <dt>{label}</dt>
      <dd data-testid={`jp-dtrain-${name}`}>{value}</dd>
    </div>
  );
}
