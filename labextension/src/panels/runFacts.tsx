/** How far a run is, how fast and how well: a bar and some numbers. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Run } from '../model/state';
import {
  formatBytes,
  formatCount,
  formatDuration,
  formatLoss,
  formatSeconds,
  formatPercent,
  formatValue
} from './format';

export interface IRunFactsProps {
  run: Run;
  /** Seconds since it began, until now or its end. */
  elapsed: number;
  running: boolean;
  trans: TranslationBundle;
}

export function RunFacts(props: IRunFactsProps): React.ReactElement {
  const { run, elapsed, running, trans } = props;
  const speed = run.samples_per_second;
  const stats: [name: string, label: string, value: string][] = [
    ['loss', trans.__('Loss'), formatLoss(run) ?? '–'],
    ['step', trans.__('Step'), formatCount(run.step)],
    ['samples', trans.__('Samples/s'), formatCount(speed === 0 ? null : speed)],
    [
      'learning-rate',
      trans.__('Learning rate'),
      formatValue(run.learning_rate)
    ],
    [
      'elapsed',
      trans.__('Elapsed'),
      running ? formatDuration(elapsed) : formatSeconds(elapsed)
    ],
    ['engines', trans.__('Engines'), String(run.world_size)]
  ];
  if (run.rows_per_second !== null) {
    stats.push(['rows', trans.__('Rows/s'), formatCount(run.rows_per_second)]);
  }
  if (run.bytes_per_second !== null) {
    const bytes = formatBytes(run.bytes_per_second);
    stats.push(['bytes', trans.__('Read'), trans.__('%1/s', bytes)]);
  }
  return (
    <>
      <Progress run={run} running={running} trans={trans} />
      <dl className="jp-dtrain-numbers">
        {stats.map(([name, label, value]) => (
          <div key={name}>
            <dt>{label}</dt>
            <dd
              data-testid={`jp-dtrain-${name}`}
              className={
                name === 'loss' && run.odd_loss !== null
                  ? 'jp-dtrain-error-text'
                  : undefined
              }
            >
              {value}
            </dd>
          </div>
        ))}
      </dl>
    </>
  );
}

interface IProgressProps {
  run: Run;
  running: boolean;
  trans: TranslationBundle;
}

/**
 * How far the run is: a bar where the loops around its steps say how long they
 * are, or else for the epoch where the loader says it.
 */
function Progress(props: IProgressProps): React.ReactElement | null {
  const { run, running, trans } = props;
  const { epoch, batch, batches, fraction, remaining } = run;
  const ofRun = run.phase === 'finished' && fraction !== null ? 1 : fraction;
  const ofEpoch =
    batch === null || batches === null || batches === 0
      ? null
      : Math.min(1, batch / batches);
  const part = ofRun ?? ofEpoch;
  const place = placeText(run, trans);
  const texts = [
    ofRun === null ? '' : formatPercent(100 * ofRun),
    running && remaining !== null
      ? trans.__('ETA %1', formatDuration(remaining))
      : ''
  ].filter(Boolean);
  if (epoch === null && part === null) {
    return running ? <div className="jp-dtrain-bar jp-dtrain-waiting" /> : null;
  }
  return (
    <div
      className="jp-dtrain-progress"
      data-testid="jp-dtrain-progress"
      title={
        ofRun === null
          ? undefined
          : trans.__(
              'Estimated from the training loops and the recent speed. Leaving a loop early shortens it; work after the loop adds to it.'
            )
      }
    >
      <div className="jp-dtrain-progress-texts">
        {place !== '' && <span>{place}</span>}
        {texts.length > 0 && <span>{texts.join(' · ')}</span>}
      </div>
      {part !== null && (
        <div
          className="jp-dtrain-bar"
          role="progressbar"
          aria-label={
            ofRun === null
              ? trans.__('Progress of the epoch')
              : trans.__('Progress of the run')
          }
          aria-valuemin={0}
          aria-valuemax={100}
          aria-valuenow={Math.round(100 * part)}
          aria-valuetext={[place, ...texts].filter(Boolean).join(', ')}
        >
          <div style={{ width: `${100 * part}%` }} />
        </div>
      )}
    </div>
  );
}

/** Where the loader is. */
function placeText(run: Run, trans: TranslationBundle): string {
  const { epoch, batch, batches } = run;
  if (epoch === null) {
    return '';
  }
  if (batch === null) {
    return trans.__('Epoch %1', String(epoch));
  }
  return batches === null
    ? trans.__('Epoch %1 · batch %2', String(epoch), String(batch))
    : trans.__(
        'Epoch %1 · batch %2 of %3',
        String(epoch),
        String(batch),
        String(batches)
      );
}
