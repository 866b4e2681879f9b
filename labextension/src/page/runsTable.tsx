/**
 * The table of all runs: sorted by a click on a column, selected by ticks. Rows
 * that are scrolled out of sight are not there: a folder may have a thousand.
 */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { lineColor } from '../charts/theme';
import type { PastRun } from '../model/archive';
import { runColor } from '../model/lines';
import type { IColumn, IOrder } from '../model/runTable';
import { isGoing, type Row as TableRow } from '../model/sweeps';
import { formatSeconds, formatValue, formatWhen } from '../panels/format';
import { runPhaseText } from '../panels/texts';
import { SweepRow } from './sweepRow';

export interface IRunsTableProps {
  rows: readonly TableRow[];
  /** The runs of all rows, those of folded sweeps too. */
  runs: readonly PastRun[];
  expanded: ReadonlySet<string>;
  onExpand: (sweep: string) => void;
  /** Select these runs, or take them out of the selection. */
  onSelect: (ids: readonly string[], selected: boolean) => void;
  /** Stop one trial; `null`: it cannot be told to. */
  onStop: ((id: string) => void) | null;
  columns: readonly IColumn[];
  order: IOrder;
  selected: readonly string[];
  opened: string | null;
  onOrder: (order: IOrder) => void;
  onToggle: (id: string) => void;
  /** Select all rows, or none. */
  onAll: (selected: boolean) => void;
  onOpen: (id: string) => void;
  trans: TranslationBundle;
}

/** The height of a row in pixels, as the style sheet has it. */
const ROW = 28;
/** Rows beyond the edges that are there, for those who scroll fast. */
const AHEAD = 15;
/** Rows that are scrolled by until others are put there: each time costs a frame some milliseconds. */
const STRIDE = 5;

export const RunsTable = React.memo(function RunsTable(
  props: IRunsTableProps
): React.ReactElement {
  const { rows, runs, columns, selected, onAll, trans } = props;
  const scroller = React.useRef<HTMLDivElement>(null);
  const [view, setView] = React.useState({ top: 0, height: 600 });
  React.useEffect(() => {
    const node = scroller.current;
    if (node === null) {
      return;
    }
    const look = (): void => {
      const stride = STRIDE * ROW;
      const top = Math.floor(node.scrollTop / stride) * stride;
      const height = node.clientHeight;
      setView(before =>
        before.top === top && before.height === height
          ? before
          : { top, height }
      );
    };
    const observer = new ResizeObserver(look);
    observer.observe(node);
    node.addEventListener('scroll', look, { passive: true });
    return () => {
      observer.disconnect();
      node.removeEventListener('scroll', look);
    };
  }, []);
  const first = Math.max(
    0,
    Math.min(rows.length, Math.floor(view.top / ROW)) - AHEAD
  );
  const last = Math.min(
    rows.length,
    Math.ceil((view.top + view.height) / ROW) + AHEAD
  );
  const numSelected = runs.filter(run => selected.includes(run.run_id)).length;
  return (
    <div
      className="jp-dtrain-runs-scroller"
      ref={scroller}
      tabIndex={0}
      role="region"
      aria-label={trans.__('Table of runs')}
    >
      <table
        className="jp-dtrain-runs-table"
        data-testid="jp-dtrain-runs-table"
        aria-rowcount={rows.length + 1}
      >
        <thead>
          <tr aria-rowindex={1}>
            <th scope="col">
              <input
                type="checkbox"
                aria-label={trans.__('Select all listed runs')}
                title={trans.__('Select all listed runs')}
                checked={numSelected > 0 && numSelected === runs.length}
                ref={node => {
                  if (node !== null) {
                    node.indeterminate =
                      numSelected > 0 && numSelected < runs.length;
                  }
                }}
                onChange={event => {
                  onAll(event.target.checked);
                }}
              />
            </th>
            {columns.map(column => (
              <Head key={column.id} column={column} {...props} />
            ))}
          </tr>
        </thead>
        <tbody>
          <Blank rows={first} />
          {rows
            .slice(first, last)
            .map((row, index) =>
              row.kind === 'sweep' ? (
                <SweepRow
                  key={row.sweep.id}
                  sweep={row.sweep}
                  index={first + index}
                  {...props}
                />
              ) : (
                <Row
                  key={row.run.run_id}
                  run={row.run}
                  trial={row.trial}
                  index={first + index}
                  {...props}
                />
              )
            )}
          <Blank rows={rows.length - last} />
        </tbody>
      </table>
    </div>
  );
});

function Blank({ rows }: { rows: number }): React.ReactElement | null {
  return rows <= 0 ? null : (
    <tr aria-hidden="true" style={{ height: rows * ROW }}>
      <td />
    </tr>
  );
}

function Head({
  column,
  order,
  onOrder
}: IRunsTableProps & { column: IColumn }): React.ReactElement {
  const isOrder = order.column === column.id;
  return (
    <th
      scope="col"
      data-kind={column.kind}
      data-numeric={column.numeric}
      aria-sort={
        !isOrder ? 'none' : order.descending ? 'descending' : 'ascending'
      }
    >
      <button
        type="button"
        title={column.label}
        onClick={() => {
          onOrder({
            column: column.id,
            descending: isOrder && !order.descending
          });
        }}
      >
        {column.label}
        <span aria-hidden="true">
          {!isOrder ? '' : order.descending ? ' ▾' : ' ▴'}
        </span>
      </button>
    </th>
  );
}

/** Of those that stay in sight while the table is scrolled nothing changes. */
const Row = React.memo(function Row(
  props: IRunsTableProps & { run: PastRun; trial: boolean; index: number }
): React.ReactElement {
  const { run, index, columns, selected, opened, onToggle, onOpen } = props;
  const { trial, onStop, trans } = props;
  const place = selected.indexOf(run.run_id);
  return (
    <tr
      aria-rowindex={index + 2}
      data-testid="jp-dtrain-runs-row"
      data-run-id={run.run_id}
      data-trial={trial}
      data-selected={place >= 0}
    >
      <td>
        <input
          type="checkbox"
          checked={place >= 0}
          aria-label={trans.__('Select %1', run.name)}
          onChange={() => {
            onToggle(run.run_id);
          }}
        />
      </td>
      {columns.map(column =>
        column.id === 'name' ? (
          <th key={column.id} scope="row">
            <span
              className="jp-dtrain-swatch"
              style={{
                borderTopColor:
                  place < 0 ? 'transparent' : lineColor(runColor(place))
              }}
            />
            <button
              type="button"
              title={trans.__('Show %1', run.name)}
              aria-current={opened === run.run_id}
              onClick={() => {
                onOpen(run.run_id);
              }}
            >
              {run.name}
            </button>
          </th>
        ) : (
          <td
            key={column.id}
            data-numeric={column.numeric}
            title={fullText(column, run)}
          >
            {textOf(column, run, trans)}
            {column.id === 'phase' && trial && isGoing(run) && (
              <button
                type="button"
                className="jp-dtrain-button"
                aria-disabled={onStop === null}
                title={trans.__('Stop this trial; the others continue')}
                aria-label={trans.__('Stop %1', run.name)}
                onClick={() => onStop?.(run.run_id)}
              >
                {trans.__('Stop')}
              </button>
            )}
          </td>
        )
      )}
    </tr>
  );
});

/** What a cell says; a dash for what is not known. */
export function textOf(
  column: IColumn,
  run: PastRun,
  trans: TranslationBundle
): string {
  const value = column.value(run);
  if (value === null) {
    return '–';
  }
  if (column.id === 'phase') {
    return runPhaseText(run.phase, trans);
  }
  if (typeof value !== 'number') {
    return String(value);
  }
  switch (column.id) {
    case 'duration':
      return formatSeconds(value);
    case 'started':
      return formatWhen(value);
    default:
      // A learning rate may be 0.00039999999999999996; a count is shown exactly.
      return column.kind === 'hyperparameter' && Number.isInteger(value)
        ? String(value)
        : formatValue(value);
  }
}

function fullText(column: IColumn, run: PastRun): string | undefined {
  const value = column.value(run);
  if (column.id === 'started' && typeof value === 'number') {
    return new Date(value * 1000).toLocaleString();
  }
  return value === null || column.id === 'phase' ? undefined : String(value);
}
