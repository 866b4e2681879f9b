/** A sweep in the table of runs: one row for all trials of a cell. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { IColumn } from '../model/runTable';
import type { ISweep } from '../model/sweeps';
import { formatDuration, formatSeconds, formatWhen } from '../panels/format';
import { textOf, type IRunsTableProps } from './runsTable';

/** All trials of a cell: how far they are, and what the best of them has come to. */
export function SweepRow(
  props: IRunsTableProps & { sweep: ISweep; index: number }
): React.ReactElement {
  const { sweep, index, columns, selected, expanded, onExpand } = props;
  const { onSelect, trans } = props;
  const ids = sweep.trials.map(run => run.run_id);
  const chosen = ids.filter(id => selected.includes(id)).length;
  const isOpen = expanded.has(sweep.id);
  const label = trans.__('Sweep: %1', sweep.name);
  return (
    <tr
      aria-rowindex={index + 2}
      data-testid="jp-dtrain-sweep-row"
      data-selected={chosen > 0}
    >
      <td>
        <input
          type="checkbox"
          checked={chosen === ids.length}
          ref={node => {
            if (node !== null) {
              node.indeterminate = chosen > 0 && chosen < ids.length;
            }
          }}
          aria-label={trans.__('Select all trials of %1', sweep.name)}
          onChange={event => {
            onSelect(ids, event.target.checked);
          }}
        />
      </td>
      {columns.map(column =>
        column.id === 'name' ? (
          <th key={column.id} scope="row">
            <button
              type="button"
              title={label}
              aria-expanded={isOpen}
              onClick={() => {
                onExpand(sweep.id);
              }}
            >
              <span aria-hidden="true">{isOpen ? '▾ ' : '▸ '}</span>
              {label}
            </button>
          </th>
        ) : (
          <td key={column.id} data-numeric={column.numeric}>
            {sweepText(column, sweep, trans)}
          </td>
        )
      )}
    </tr>
  );
}

function sweepText(
  column: IColumn,
  sweep: ISweep,
  trans: TranslationBundle
): string {
  const { trials, best, ended, pruned, total, remaining } = sweep;
  switch (column.id) {
    case 'phase': {
      const text =
        pruned === 0
          ? trans.__('%1 of %2', String(ended), String(total))
          : trans.__(
              '%1 of %2 (%3 pruned)',
              String(ended),
              String(total),
              String(pruned)
            );
      return remaining === null
        ? text
        : `${text} · ${trans.__('ETA %1', formatDuration(remaining))}`;
    }
    case 'started':
      return formatWhen(Math.min(...trials.map(run => run.started)));
    case 'duration': {
      const ends = trials.map(run => run.ended ?? Infinity);
      const span =
        Math.max(...ends) - Math.min(...trials.map(run => run.started));
      return Number.isFinite(span) ? formatSeconds(span) : '–';
    }
    default:
      return best === null ? '' : textOf(column, best, trans);
  }
}
