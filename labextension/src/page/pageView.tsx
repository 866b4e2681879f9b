/** What the page of runs shows: the table, and a tab of views of what is selected in it. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { download } from '../charts/picture';
import { MAX_DRAWN } from '../model/runSelection';
import { columnsOf, rowsOf, tableCsv, type IOrder } from '../model/runTable';
import { groupedRows } from '../model/sweeps';
import type { ITraining } from '../model/training';
import { ComparedRuns } from './comparedRuns';
import { Host } from './host';
import { OpenedRun } from './openedRun';
import type { RunPlots } from './runPlots';
import { RunsTable } from './runsTable';

type Tab = 'charts' | 'compare' | 'run';
const TABS: readonly Tab[] = ['charts', 'compare', 'run'];

export interface IPageProps {
  training: ITraining;
  charts: RunPlots;
  devices: RunPlots;
  onSave: (save: () => void) => void;
  trans: TranslationBundle;
}

export function PageView(props: IPageProps): React.ReactElement {
  const { training, charts, devices, onSave, trans } = props;
  const { page } = training;
  const [filter, setFilter] = React.useState('');
  const [all, setAll] = React.useState(false);
  const [order, setOrder] = React.useState<IOrder>({
    column: 'started',
    descending: true
  });
  const [tab, setTab] = React.useState<Tab>('charts');
  const runs = page.archive.runs;
  const labels = React.useMemo(() => factLabels(trans), [trans]);
  const columns = React.useMemo(
    () => columnsOf(runs ?? [], all, labels),
    [runs, all, labels]
  );
  const every = React.useMemo(
    () => columnsOf(runs ?? [], true, labels),
    [runs, labels]
  );
  const rows = React.useMemo(
    () => rowsOf(runs ?? [], filter, order, columns),
    [runs, filter, order, columns]
  );
  const [expanded, setExpanded] = React.useState<ReadonlySet<string>>(
    new Set()
  );
  const grouped = React.useMemo(
    () => groupedRows(rows, expanded),
    [rows, expanded]
  );
  const expand = React.useCallback((sweep: string) => {
    setExpanded(before => {
      const after = new Set(before);
      if (!after.delete(sweep)) {
        after.add(sweep);
      }
      return after;
    });
  }, []);
  const select = React.useCallback(
    (ids: readonly string[], selected: boolean) => {
      const others = page.ids.filter(id => !ids.includes(id));
      page.select(selected ? [...others, ...ids] : others);
    },
    [page]
  );
  const { controls } = training;
  const canStop = controls.obstacle('stop_trial') === null;
  const stop = React.useCallback(
    (run_id: string) => {
      void controls.send('stop_trial', { run_id });
    },
    [controls]
  );
  const toggle = React.useCallback(
    (id: string) => {
      page.toggle(id);
    },
    [page]
  );
  const onAll = React.useCallback(
    (selected: boolean) => {
      page.select(selected ? rows.map(run => run.run_id) : []);
    },
    [page, rows]
  );
  const open = React.useCallback(
    (id: string) => {
      setTab('run');
      void page.open(id);
    },
    [page]
  );
  onSave(() => {
    const blob = new Blob([tableCsv(rows, every)], { type: 'text/csv' });
    download(blob, 'runs.csv');
  });
  const { error } = page.archive;
  if (runs === null) {
    return (
      <p className="jp-dtrain-hint" role={error === null ? undefined : 'alert'}>
        {error ?? trans.__('Loading past runs…')}
      </p>
    );
  }
  const known = new Map(runs.map(run => [run.run_id, run] as const));
  const selected = page.ids.flatMap(id => known.get(id) ?? []);
  return (
    <>
      <div className="jp-dtrain-page-tools">
        <input
          type="search"
          className="jp-dtrain-field"
          data-testid="jp-dtrain-page-filter"
          placeholder={trans.__('Filter: name, tag, state, optimizer=Adam')}
          aria-label={trans.__(
            'Filter runs by name, tag, state or hyperparameter'
          )}
          value={filter}
          onChange={event => {
            setFilter(event.target.value);
          }}
        />
        <label>
          <input
            type="checkbox"
            checked={all}
            onChange={event => {
              setAll(event.target.checked);
            }}
          />
          <span>{trans.__('All columns')}</span>
        </label>
        <span className="jp-dtrain-hint" role="status">
          {trans.__(
            '%1 of %2 runs, %3 selected',
            String(rows.length),
            String(runs.length),
            String(selected.length)
          )}
        </span>
      </div>
      {error !== null && (
        <p className="jp-dtrain-error-text" role="alert">
          {error}
        </p>
      )}
      <RunsTable
        rows={grouped}
        runs={rows}
        expanded={expanded}
        onExpand={expand}
        onSelect={select}
        onStop={canStop ? stop : null}
        columns={columns}
        order={order}
        selected={page.ids}
        opened={page.opened}
        onOrder={setOrder}
        onToggle={toggle}
        onAll={onAll}
        onOpen={open}
        trans={trans}
      />
      <Tabs tab={tab} onTab={setTab} trans={trans} />
      <div
        className="jp-dtrain-page-view"
        role="tabpanel"
        id="jp-dtrain-page-panel"
        aria-labelledby={`jp-dtrain-tab-${tab}`}
        tabIndex={0}
      >
        {tab === 'charts' && (
          <>
            {selected.length === 0 && (
              <p className="jp-dtrain-hint">
                {trans.__('Select runs in the table to see their curves.')}
              </p>
            )}
            {selected.length > MAX_DRAWN && (
              <p className="jp-dtrain-hint">
                {trans.__(
                  'The charts show the first %1 selected runs.',
                  String(MAX_DRAWN)
                )}
              </p>
            )}
            <Host node={charts.node} />
          </>
        )}
        {tab === 'compare' && (
          <ComparedRuns
            runs={selected}
            columns={every}
            archive={page.archive}
            trans={trans}
          />
        )}
        {tab === 'run' && (
          <OpenedRun
            run={page.opened === null ? undefined : known.get(page.opened)}
            selection={page}
            devices={devices}
            onFilter={setFilter}
            trans={trans}
          />
        )}
      </div>
    </>
  );
}

interface ITabsProps {
  tab: Tab;
  onTab: (tab: Tab) => void;
  trans: TranslationBundle;
}

function Tabs({ tab, onTab, trans }: ITabsProps): React.ReactElement {
  const names: Record<Tab, string> = {
    charts: trans.__('Charts'),
    compare: trans.__('Compare'),
    run: trans.__('Run')
  };
  const move = (event: React.KeyboardEvent): void => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined) {
      return;
    }
    event.preventDefault();
    const place = TABS.indexOf(tab) + by + TABS.length;
    const next = TABS[place % TABS.length] ?? tab;
    onTab(next);
    document.getElementById(`jp-dtrain-tab-${next}`)?.focus();
  };
  return (
    <div
      className="jp-dtrain-page-tabs"
      role="tablist"
      aria-label={trans.__('Views of the selected runs')}
      onKeyDown={move}
    >
      {TABS.map(one => (
        <button
          key={one}
          type="button"
          role="tab"
          id={`jp-dtrain-tab-${one}`}
          aria-selected={one === tab}
          aria-controls="jp-dtrain-page-panel"
          tabIndex={one === tab ? 0 : -1}
          onClick={() => {
            onTab(one);
          }}
        >
          {names[one]}
        </button>
      ))}
    </div>
  );
}

function factLabels(trans: TranslationBundle): Parameters<typeof columnsOf>[2] {
  return {
    name: trans.__('Name'),
    phase: trans.__('State'),
    loss: trans.__('Loss'),
    best: trans.__('Best'),
    world_size: trans.__('Engines'),
    duration: trans.__('Duration'),
    started: trans.__('Started'),
    tags: trans.__('Tags')
  };
}
