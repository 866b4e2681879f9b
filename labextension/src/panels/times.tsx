/** Where the time goes: a bar per rank, and what would make it less. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { advise, type Advice } from '../model/advice';
import {
  PARTS,
  total,
  type IBusiestLine,
  type Part,
  type RankTimes
} from '../model/times';
import { formatPercent, formatSeconds } from './format';
import { View } from './view';

/** More ranks are not drawn one by one: those that stand out most are. */
const MAX_BARS = 16;

export class TimesView extends View {
  protected render(): React.ReactElement | null {
    const { trans } = this;
    const state = this.model.current?.connection.state;
    const times = state?.times;
    const ranks = [...(times?.values() ?? [])];
    ranks.sort((a, b) => a.rank - b.rank);
    if (ranks.length === 0) {
      return null;
    }
    const advice = advise(ranks);
    const names = partNames(trans);
    const shown = mostUnlike(ranks, MAX_BARS);
    return (
      <section
        className="jp-dtrain-section"
        data-testid="jp-dtrain-times"
        data-advice={advice.kind}
        aria-labelledby="jp-dtrain-times-title"
      >
        <header>
          <h2 id="jp-dtrain-times-title">{trans.__('Where the time goes')}</h2>
        </header>
        <p data-testid="jp-dtrain-advice">
          {adviceText(advice, state?.running === true, trans)}
        </p>
        <ul className="jp-dtrain-times">
          {shown.map(rank => (
            <Bar key={rank.rank} rank={rank} names={names} trans={trans} />
          ))}
        </ul>
        {shown.length < ranks.length && (
          <p className="jp-dtrain-hint">
            {trans.__(
              '%1 of %2 ranks: those that differ most from the mean.',
              String(shown.length),
              String(ranks.length)
            )}
          </p>
        )}
        <ul className="jp-dtrain-parts" aria-hidden="true">
          {PARTS.map(part => (
            <li key={part}>
              <span className="jp-dtrain-part" data-part={part} />
              {names[part]}
            </li>
          ))}
        </ul>
      </section>
    );
  }
}

interface IBarProps {
  rank: RankTimes;
  names: Record<Part, string>;
  trans: TranslationBundle;
}

function Bar({ rank, names, trans }: IBarProps): React.ReactElement {
  const shares = PARTS.map(part => ({ part, of: rank.share(part) }));
  const label = trans.__('Rank %1', String(rank.rank));
  const told = shares
    .map(({ part, of }) => `${names[part]} ${formatPercent(100 * of)}`)
    .join(', ');
  const all = PARTS.map(
    part => `${names[part]}: ${formatSeconds(rank.all[part])}`
  );
  const title = [
    label,
    told,
    trans.__('Since the start, %1:', formatSeconds(total(rank.all))),
    ...all
  ].join('\n');
  return (
    <li data-testid="jp-dtrain-rank-times" data-rank={rank.rank} title={title}>
      <span className="jp-dtrain-times-rank">{rank.rank}</span>
      <div
        className="jp-dtrain-split"
        role="img"
        aria-label={`${label}: ${told}`}
      >
        {shares.map(({ part, of }) => (
          <div
            key={part}
            className="jp-dtrain-part"
            data-part={part}
            style={{ width: `${100 * of}%` }}
          />
        ))}
      </div>
    </li>
  );
}

/** The ranks whose split is farthest from the mean, in order of rank. */
function mostUnlike(ranks: RankTimes[], limit: number): RankTimes[] {
  if (ranks.length <= limit) {
    return ranks;
  }
  const means = PARTS.map(
    part =>
      ranks.reduce((sum, rank) => sum + rank.share(part), 0) / ranks.length
  );
  const unlike = ranks.map(rank => ({
    rank,
    distance: PARTS.reduce(
      (sum, part, i) => sum + Math.abs(rank.share(part) - (means[i] ?? 0)),
      0
    )
  }));
  unlike.sort((a, b) => b.distance - a.distance);
  return unlike
    .slice(0, limit)
    .map(({ rank }) => rank)
    .sort((a, b) => a.rank - b.rank);
}

function partNames(trans: TranslationBundle): Record<Part, string> {
  return {
    data: trans.__('Data'),
    forward: trans.__('Forward'),
    backward: trans.__('Backward'),
    communication: trans.__('Communication'),
    optimizer: trans.__('Optimizer'),
    other: trans.__('Rest of the cell')
  };
}

function adviceText(
  advice: Advice,
  running: boolean,
  trans: TranslationBundle
): string {
  const percent = 'share' in advice ? formatPercent(100 * advice.share) : '';
  switch (advice.kind) {
    case 'too-early':
      return running
        ? trans.__('Advice appears after a few steps.')
        : trans.__('The run was too short for advice.');
    case 'data':
      return dataText(advice, percent, trans);
    case 'straggler':
      return trans.__(
        'The ranks wait %1 of their time for each other: rank %2 is a straggler, %3× the median step time. Check what else is running on its machine.',
        percent,
        String(advice.rank),
        advice.slower.toFixed(1)
      );
    case 'communication':
      return trans.__(
        'The ranks spend %1 of their time on communication. Increase batch_size to communicate less often, or use fewer engines.',
        percent
      );
    case 'optimizer':
      return trans.__(
        'The optimizer takes %1 of the time: try its fused=True, or a larger batch_size for fewer steps.',
        percent
      );
    case 'other':
      return otherText(advice.line, percent, trans);
    case 'good':
      return trans.__(
        'Nothing stands out: %1 of the time goes into forward and backward passes.',
        percent
      );
  }
}

/** What a rank waits for that waits for data, and what would make it less. */
function otherText(
  line: IBusiestLine | null,
  percent: string,
  trans: TranslationBundle
): string {
  if (line === null) {
    return trans.__(
      'The cell’s own code takes %1 of the time, outside models, backward passes and loaders. Check per-step work such as augmentation, logging and printing.',
      percent
    );
  }
  const text = trans.__(
    'The cell’s own code takes %1 of the time, outside models, backward passes and loaders: mostly line %2',
    percent,
    String(line.line)
  );
  return line.code === '' ? `${text}.` : `${text}: ${line.code}`;
}

function dataText(
  advice: Advice & { kind: 'data' },
  percent: string,
  trans: TranslationBundle
): string {
  const rank = String(advice.rank);
  const workers = String(advice.workers);
  switch (advice.most) {
    case null:
      return trans.__(
        'Rank %1 waits %2 of its time for data: try num_workers=%3 in the DataLoader.',
        rank,
        percent,
        workers
      );
    case 'files':
      return trans.__(
        'Rank %1 waits %2 of its time for data, mostly for the file system: read fewer columns, or put the files on a faster disk.',
        rank,
        percent
      );
    case 'partitions':
      return trans.__(
        'Rank %1 waits %2 of its time for data, mostly for Dask to compute partitions: give it more workers, or write them to Parquet files first.',
        rank,
        percent
      );
    case 'decoding':
      return trans.__(
        'Rank %1 waits %2 of its time for data, mostly for rows to be decoded: read fewer columns, or try num_workers=%3 in the DataLoader.',
        rank,
        percent,
        workers
      );
    case 'transforms':
      return trans.__(
        'Rank %1 waits %2 of its time for data, mostly for the transform: try num_workers=%3 in the DataLoader.',
        rank,
        percent,
        workers
      );
  }
}
