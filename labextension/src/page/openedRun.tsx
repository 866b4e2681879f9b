/** One run: what it was, what it trained with, its devices, checkpoints and cell. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { download } from '../charts/picture';
import type { Archive, PastRun } from '../model/archive';
import type { Checkpoint } from '../model/checkpoints';
import { durationOf } from '../model/runList';
import { bestOf } from '../model/runTable';
import type { RunSelection } from '../model/runSelection';
import {
  formatBytes,
  formatCount,
  formatSeconds,
  formatValue,
  formatWhen
} from '../panels/format';
import { RunOutputView } from '../panels/runOutput';
import { runPhaseText } from '../panels/texts';
import { Host } from './host';
import type { RunPlots } from './runPlots';

export interface IOpenedRunProps {
  run: PastRun | undefined;
  selection: RunSelection;
  devices: RunPlots;
  /** List the runs that a filter finds. */
  onFilter: (filter: string) => void;
  trans: TranslationBundle;
}

export function OpenedRun(props: IOpenedRunProps): React.ReactElement {
  const { run, selection, devices, onFilter, trans } = props;
  if (run === undefined) {
    return (
      <p className="jp-dtrain-hint">
        {trans.__('Click a run’s name in the table to see its details.')}
      </p>
    );
  }
  const { checkpoints, cell } = selection;
  const list = checkpoints.runId === run.run_id ? checkpoints.list : null;
  const best = bestOf(run);
  const duration = durationOf(run);
  const facts: [string, string][] = [
    [trans.__('State'), runPhaseText(run.phase, trans)],
    [trans.__('Started'), formatWhen(run.started)],
    [trans.__('Duration'), duration === null ? '–' : formatSeconds(duration)],
    [trans.__('Engines'), String(run.world_size)],
    [trans.__('Steps'), formatCount(run.steps)],
    [trans.__('Loss'), formatValue(run.loss)],
    ...(best === null
      ? []
      : [
          [trans.__('Best %1', best.name), formatValue(best.value)] as [
            string,
            string
          ]
        ])
  ];
  return (
    <div className="jp-dtrain-opened" data-testid="jp-dtrain-opened">
      <div className="jp-dtrain-opened-head">
        <h3>{run.name}</h3>
        <Tags
          key={run.run_id}
          run={run}
          archive={selection.archive}
          onFilter={onFilter}
          trans={trans}
        />
        <button
          type="button"
          className="jp-dtrain-button"
          title={trans.__('Save this run as one HTML file to share')}
          onClick={() => {
            void share(run, selection.archive);
          }}
        >
          {trans.__('HTML')}
        </button>
      </div>
      {run.error !== null && (
        <pre className="jp-dtrain-error" tabIndex={0}>
          {run.error}
        </pre>
      )}
      <div className="jp-dtrain-opened-facts">
        <Values title={trans.__('Run')} values={facts} />
        <Values
          title={trans.__('Hyperparameters')}
          values={Object.entries(run.hyperparameters).map(([name, value]) => [
            name,
            value === null ? '–' : String(value)
          ])}
        />
        <Values
          title={trans.__('Metrics (last, min, max)')}
          values={run.metrics.map(({ name, last, low, high }) => [
            name,
            [last, low, high].map(formatValue).join(', ')
          ])}
        />
        <Values
          title={trans.__('Checkpoints')}
          values={(list ?? []).map(checkpoint => [
            trans.__('Step %1', formatCount(checkpoint.step)),
            checkpointText(checkpoint, trans)
          ])}
        />
      </div>
      {selection.devices.length > 0 && (
        <>
          <h4>{trans.__('Utilization (%) and memory (bytes) of each rank')}</h4>
          <Host node={devices.node} />
        </>
      )}
      <h4>{trans.__('Output')}</h4>
      <RunOutputView
        key={run.run_id}
        run={run}
        archive={selection.archive}
        trans={trans}
      />
      {cell !== null && (
        <>
          <h4>{trans.__('Cell')}</h4>
          <pre tabIndex={0} role="region" aria-label={trans.__('Cell')}>
            {cell}
          </pre>
        </>
      )}
    </div>
  );
}

async function share(run: PastRun, archive: Archive): Promise<void> {
  const page = await archive.share(run);
  if (page !== null) {
    const name = run.name.replace(/[^\w.-]+/g, '-');
    download(new Blob([page], { type: 'text/html' }), `${name}.html`);
  }
}

interface ITagsProps {
  run: PastRun;
  archive: Archive;
  onFilter: (filter: string) => void;
  trans: TranslationBundle;
}

/** The tags of a run: each lists the runs that have it, or is taken off; a field adds one. */
function Tags(props: ITagsProps): React.ReactElement {
  const { run, archive, onFilter, trans } = props;
  const [added, setAdded] = React.useState('');
  const add = (event: React.FormEvent): void => {
    event.preventDefault();
    if (added.trim() !== '') {
      void archive.tag(run, [...run.tags, added].join(','));
      setAdded('');
    }
  };
  return (
    <>
      <ul
        className="jp-dtrain-tags"
        aria-label={trans.__('Tags')}
        data-testid="jp-dtrain-opened-tags"
      >
        {run.tags.map(tag => (
          <li key={tag}>
            <button
              type="button"
              title={trans.__('List the runs with the tag %1', tag)}
              onClick={() => {
                onFilter(`tag=${tag}`);
              }}
            >
              {tag}
            </button>
            <button
              type="button"
              aria-label={trans.__('Remove the tag %1', tag)}
              title={trans.__('Remove the tag %1', tag)}
              onClick={() => {
                const left = run.tags.filter(one => one !== tag);
                void archive.tag(run, left.join(','));
              }}
            >
              ×
            </button>
          </li>
        ))}
      </ul>
      <form onSubmit={add}>
        <input
          className="jp-dtrain-field"
          aria-label={trans.__('Add a tag')}
          placeholder={trans.__('Add a tag')}
          value={added}
          onChange={event => {
            setAdded(event.target.value);
          }}
        />
      </form>
    </>
  );
}

function checkpointText(
  checkpoint: Checkpoint,
  trans: TranslationBundle
): string {
  const { loss, num_bytes, time, pinned, best } = checkpoint;
  return [
    loss === null ? '' : trans.__('loss %1', formatValue(loss)),
    formatBytes(num_bytes),
    formatWhen(time),
    best ? trans.__('best') : '',
    pinned ? trans.__('pinned') : ''
  ]
    .filter(Boolean)
    .join(' · ');
}

interface IValuesProps {
  title: string;
  values: readonly (readonly [string, string])[];
}

/** A list of names and values; nothing where there are none. */
function Values({ title, values }: IValuesProps): React.ReactElement | null {
  return values.length === 0 ? null : (
    <section>
      <h4>{title}</h4>
      <dl>
        {values.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
