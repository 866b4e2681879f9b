/** Past runs of the notebook's folder: find, mark, draw and compare them. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { NotebookCells } from '../cells';
import type { PastRun } from '../model/archive';
import { SORT_KEYS, selectRuns, type SortKey } from '../model/runList';
import type { ITraining, TrainingModel } from '../model/training';
import { ComparisonView } from './comparison';
import { PastRunRow } from './pastRun';
import { View } from './view';

/** More rows are not drawn: the filter finds the others. */
const MAX_ROWS = 100;

export class RunsView extends View {
  constructor(
    id: string,
    model: TrainingModel,
    trans: TranslationBundle,
    private readonly _cells: NotebookCells,
    /** Open the page of runs. */
    private readonly _open: () => void
  ) {
    super(id, model, trans);
  }

  protected render(): React.ReactElement | null {
    const training = this.model.current;
    return training?.connection.status === 'connected' ? (
      <PastRuns
        training={training}
        cells={this._cells}
        onOpenPage={this._open}
        trans={this.trans}
      />
    ) : null;
  }
}

interface IRunsProps {
  training: ITraining;
  cells: NotebookCells;
  trans: TranslationBundle;
}

function PastRuns({
  training,
  cells,
  onOpenPage,
  trans
}: IRunsProps & { onOpenPage: () => void }): React.ReactElement {
  const { archive, connection } = training;
  const { run, running } = connection.state;
  const canAsk = connection.canCommand;
  const [open, setOpen] = React.useState(false);
  // The list is fetched when it is opened, and when a run begins or ends.
  const occasion = `${run?.run_id ?? ''} ${String(running)}`;
  React.useEffect(() => {
    if (open && canAsk) {
      void archive.refresh();
    }
  }, [archive, open, canAsk, occasion]);
  return (
    <section
      className="jp-dtrain-section"
      data-testid="jp-dtrain-past-runs"
      aria-labelledby="jp-dtrain-past-runs-title"
    >
      <header>
        <h2 id="jp-dtrain-past-runs-title">
          <button
            type="button"
            className="jp-dtrain-toggle"
            aria-expanded={open}
            onClick={() => {
              setOpen(!open);
            }}
          >
            {trans.__('Past runs')}
          </button>
        </h2>
        <button
          type="button"
          className="jp-dtrain-link jp-dtrain-open-page"
          title={trans.__('Open all runs in a tab of the main area')}
          onClick={onOpenPage}
        >
          {trans.__('Open in a tab')}
        </button>
      </header>
      {open && <RunList training={training} cells={cells} trans={trans} />}
    </section>
  );
}

function RunList({ training, cells, trans }: IRunsProps): React.ReactElement {
  const { archive } = training;
  const [filter, setFilter] = React.useState('');
  const [sort, setSort] = React.useState<SortKey>('newest');
  const [opened, setOpened] = React.useState<string | null>(null);
  const { runs, error, comparison } = archive;
  if (runs === null) {
    return error === null ? (
      <p className="jp-dtrain-hint">{trans.__('Loading past runs…')}</p>
    ) : (
      <Problem text={error} />
    );
  }
  if (runs.length === 0) {
    return error !== null ? (
      <Problem text={error} />
    ) : (
      <p className="jp-dtrain-hint">
        {trans.__(
          'No runs recorded in this folder. Each %1 cell is recorded in %2, next to the notebook.',
          '%%distribute',
          'dtrain-runs'
        )}
      </p>
    );
  }
  const found = selectRuns(runs, filter, sort);
  const shown = found.slice(0, MAX_ROWS);
  const byId = new Map(runs.map(run => [run.run_id, run]));
  const name = (runId: string): string => byId.get(runId)?.name ?? runId;
  return (
    <>
      <div className="jp-dtrain-run-tools">
        <input
          type="search"
          className="jp-dtrain-field"
          data-testid="jp-dtrain-run-filter"
          placeholder={trans.__('Filter')}
          aria-label={trans.__('Filter past runs by name, tag or state')}
          value={filter}
          onChange={event => {
            setFilter(event.target.value);
          }}
        />
        <select
          data-testid="jp-dtrain-run-sort"
          aria-label={trans.__('Sort past runs')}
          value={sort}
          onChange={event => {
            setSort(event.target.value as SortKey);
          }}
        >
          {SORT_KEYS.map(key => (
            <option key={key} value={key}>
              {sortName(key, trans)}
            </option>
          ))}
        </select>
      </div>
      {error !== null && <Problem text={error} />}
      <ul className="jp-dtrain-past-runs">
        {shown.map(run => (
          <PastRunRow
            key={run.run_id}
            run={run}
            others={others(runs, run)}
            color={colorOf(training, run)}
            archive={archive}
            cells={cells}
            opened={opened === run.run_id}
            onToggle={() => {
              setOpened(opened === run.run_id ? null : run.run_id);
            }}
            trans={trans}
          />
        ))}
      </ul>
      {found.length === 0 && (
        <p className="jp-dtrain-hint">
          {trans.__('No runs match the filter.')}
        </p>
      )}
      {found.length > shown.length && (
        <p className="jp-dtrain-hint">
          {trans.__(
            'Showing %1 of %2. Filter to find others.',
            String(shown.length),
            String(found.length)
          )}
        </p>
      )}
      {comparison !== null && (
        <ComparisonView
          comparison={comparison}
          before={name(comparison.before)}
          after={name(comparison.after)}
          onClose={() => {
            archive.forgetComparison();
          }}
          trans={trans}
        />
      )}
    </>
  );
}

function Problem({ text }: { text: string }): React.ReactElement {
  return (
    <p className="jp-dtrain-error-text" role="alert">
      {text}
    </p>
  );
}

function others(runs: readonly PastRun[], run: PastRun): PastRun[] {
  return runs.filter(other => other.run_id !== run.run_id);
}

/** Which of the charts' runs this one is; `null`: it is not drawn. */
function colorOf(training: ITraining, run: PastRun): number | null {
  const index = training
    .curveRuns()
    .findIndex(drawn => drawn.runId === run.run_id);
  return index < 0 ? null : index;
}

function sortName(key: SortKey, trans: TranslationBundle): string {
  switch (key) {
    case 'newest':
      return trans.__('Newest');
    case 'oldest':
      return trans.__('Oldest');
    case 'name':
      return trans.__('Name');
    case 'loss':
      return trans.__('Lowest loss');
    case 'duration':
      return trans.__('Shortest');
  }
}
