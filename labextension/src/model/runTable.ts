/** Past runs as a table: its columns, which rows, in which order. */

import type { Value } from './archive';
import type { PastRun } from './archive';
import { durationOf } from './runList';

export type Cell = Value;

export interface IColumn {
  id: string;
  /** As the table's head has it; facts are named by the view. */
  label: string;
  kind: 'fact' | 'metric' | 'hyperparameter';
  /** Whether it has numbers, which stand below each other; dashes too. */
  numeric: boolean;
  value: (run: PastRun) => Cell;
}

export interface IOrder {
  column: string;
  descending: boolean;
}

/** Columns that every table has, in their order. */
export const FACTS = [
  'name',
  'phase',
  'loss',
  'best',
  'world_size',
  'duration',
  'started',
  'tags'
] as const;

/** Curves that every run has and that say little in one number. */
const LEFT_OUT = new Set([
  'loss',
  'epoch',
  'learning_rate',
  'samples_per_second'
]);

/** What a run has come to by the metric that it is compared by. */
export function bestOf(run: PastRun): { name: string; value: number } | null {
  const [, name = '', mode = ''] =
    /^(.*):(min|max)$/.exec(run.best ?? '') ?? [];
  const metric = run.metrics.find(
    ({ name: one }) => one === name || one === `${name} (logged)`
  );
  const value = mode === 'max' ? metric?.high : metric?.low;
  return value === null || value === undefined ? null : { name, value };
}

/**
 * The columns of a table of `runs`: facts, then metrics, then hyperparameters.
 * Without `all`, those of these that are the same in all runs are left out.
 */
export function columnsOf(
  runs: readonly PastRun[],
  all: boolean,
  labels: Record<(typeof FACTS)[number], string>
): IColumn[] {
  const metrics = new Set<string>();
  const names = new Set<string>();
  const hasTags = runs.some(run => run.tags.length > 0);
  let hasBest = false;
  for (const run of runs) {
    hasBest ||= bestOf(run) !== null;
    for (const { name } of run.metrics) {
      if (!LEFT_OUT.has(name)) {
        metrics.add(name);
      }
    }
    for (const name of Object.keys(run.hyperparameters)) {
      names.add(name);
    }
  }
  const numeric = (value: IColumn['value']): boolean =>
    runs.some(run => typeof value(run) === 'number');
  const facts = FACTS.filter(
    id => (id !== 'best' || hasBest) && (id !== 'tags' || hasTags)
  ).map((id): IColumn => ({
    id,
    label: labels[id],
    kind: 'fact',
    numeric: numeric(FACT_VALUES[id]),
    value: FACT_VALUES[id]
  }));
  const others: IColumn[] = [
    ...[...metrics].map((name): IColumn => {
      const value = (run: PastRun): Cell =>
        run.metrics.find(metric => metric.name === name)?.last ?? null;
      const id = `metric ${name}`;
      return { id, label: name, kind: 'metric', numeric: true, value };
    }),
    ...[...names].map((name): IColumn => ({
      id: `hyperparameter ${name}`,
      label: name,
      kind: 'hyperparameter',
      numeric: numeric(run => run.hyperparameters[name] ?? null),
      value: run => run.hyperparameters[name] ?? null
    }))
  ];
  return [...facts, ...others.filter(column => all || differs(column, runs))];
}

/** Whether a column tells runs apart. */
export function differs(column: IColumn, runs: readonly PastRun[]): boolean {
  const [first] = runs;
  if (first === undefined) {
    return false;
  }
  const value = column.value(first);
  return runs.some(run => column.value(run) !== value);
}

/**
 * The runs that have all words of `filter` in their name, tags, phase, id or as
 * `name=value` in their hyperparameters or as `tag=…`, in an order: what is not known is last.
 */
export function rowsOf(
  runs: readonly PastRun[],
  filter: string,
  order: IOrder,
  columns: readonly IColumn[]
): PastRun[] {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = runs.filter(run => {
    const values = [
      ...Object.entries(run.hyperparameters).map(
        ([name, value]) => `${name}=${String(value)}`
      ),
      ...run.tags.map(tag => `tag=${tag}`)
    ];
    const text = [run.name, run.phase, run.run_id, ...run.tags, ...values]
      .join('\n')
      .toLowerCase();
    return words.every(word => text.includes(word));
  });
  const column = columns.find(({ id }) => id === order.column);
  if (column === undefined) {
    return found.sort((a, b) => b.number - a.number);
  }
  const sign = order.descending ? -1 : 1;
  return found
    .map(run => ({ run, value: column.value(run) }))
    .sort(
      (a, b) =>
        Number(a.value === null) - Number(b.value === null) ||
        sign * compared(a.value, b.value) ||
        b.run.number - a.run.number
    )
    .map(({ run }) => run);
}

/** A table as a spreadsheet reads it. */
export function tableCsv(
  runs: readonly PastRun[],
  columns: readonly IColumn[]
): string {
  const lines = [
    ['run_id', ...columns.map(({ label }) => label)],
    ...runs.map(run => [
      run.run_id,
      ...columns.map(column => {
        const value = column.value(run);
        return value === null ? '' : String(value);
      })
    ])
  ];
  return `${lines.map(line => line.map(quoted).join(',')).join('\n')}\n`;
}

function compared(a: Cell, b: Cell): number {
  return typeof a === 'number' && typeof b === 'number'
    ? a - b
    : String(a).localeCompare(String(b), undefined, { numeric: true });
}

/** A text that begins like a formula is none. */
function quoted(text: string): string {
  const safe =
    /^[=+@\t\r]/.test(text) || /^-(?![\d.])/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

const FACT_VALUES: Record<(typeof FACTS)[number], IColumn['value']> = {
  name: run => run.name,
  phase: run => run.phase,
  loss: run => run.loss,
  best: run => bestOf(run)?.value ?? null,
  world_size: run => run.world_size,
  duration: durationOf,
  started: run => run.started,
  tags: run => (run.tags.length === 0 ? null : run.tags.join(', '))
};
