/** The selected runs side by side: what they came to, and what tells them apart. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Archive, PastRun } from '../model/archive';
import { differs, type IColumn } from '../model/runTable';
import { Differences } from '../panels/comparison';
import { textOf } from './runsTable';

/** Runs beside each other: more are not read. */
const MAX_RUNS = 8;

export interface IComparedRunsProps {
  /** Those that are selected. */
  runs: readonly PastRun[];
  /** All columns, whether or not they differ. */
  columns: readonly IColumn[];
  archive: Archive;
  trans: TranslationBundle;
}

export function ComparedRuns(props: IComparedRunsProps): React.ReactElement {
  const { runs, columns, archive, trans } = props;
  const [pair, setPair] = React.useState<readonly [string, string] | null>(
    null
  );
  const ids = runs.map(run => run.run_id);
  const oldest = [...runs].sort((a, b) => a.number - b.number);
  const wanted =
    pair?.every(id => ids.includes(id)) === true
      ? pair
      : ([oldest[0]?.run_id ?? '', oldest[1]?.run_id ?? ''] as const);
  const [before, after] = wanted.map(id => runs.find(one => one.run_id === id));
  const key = wanted.join(' ');
  React.useEffect(() => {
    if (before !== undefined && after !== undefined) {
      void archive.compare(before, after);
    }
  }, [archive, key]);
  if (runs.length < 2) {
    return (
      <p className="jp-dtrain-hint">
        {trans.__('Select two or more runs in the table to compare them.')}
      </p>
    );
  }
  const shown = runs.slice(0, MAX_RUNS);
  const rows = columns.filter(
    column => column.id !== 'name' && differs(column, shown)
  );
  const { comparison, error } = archive;
  const isIt =
    comparison?.before === wanted[0] && comparison.after === wanted[1];
  const choose = (which: 0 | 1, label: string): React.ReactElement => (
    <label>
      <span>{label}</span>
      <select
        aria-label={
          which === 0 ? trans.__('Compare from') : trans.__('Compare to')
        }
        value={wanted[which]}
        onChange={event => {
          const { value } = event.target;
          setPair(which === 0 ? [value, wanted[1]] : [wanted[0], value]);
        }}
      >
        {runs.map(run => (
          <option key={run.run_id} value={run.run_id}>
            {run.name}
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <div className="jp-dtrain-comparison" data-testid="jp-dtrain-compared">
      <h3>{trans.__('Differences')}</h3>
      <div
        className="jp-dtrain-wide"
        tabIndex={0}
        role="region"
        aria-label={trans.__('Differences')}
      >
        <table>
          <thead>
            <tr>
              <td />
              {shown.map(run => (
                <th key={run.run_id} scope="col" title={run.name}>
                  {run.name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map(column => (
              <tr key={column.id} data-kind={column.kind}>
                <th scope="row">{column.label}</th>
                {shown.map(run => (
                  <td key={run.run_id}>{textOf(column, run, trans)}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {runs.length > shown.length && (
        <p className="jp-dtrain-hint">
          {trans.__(
            'Compared: the first %1 of %2 selected runs.',
            String(shown.length),
            String(runs.length)
          )}
        </p>
      )}
      <h3>{trans.__('Arguments, versions and code')}</h3>
      <div className="jp-dtrain-run-tools">
        {choose(0, trans.__('from'))}
        {choose(1, trans.__('to'))}
      </div>
      {error !== null && (
        <p className="jp-dtrain-error-text" role="alert">
          {error}
        </p>
      )}
      {isIt && <Differences comparison={comparison} trans={trans} />}
    </div>
  );
}
