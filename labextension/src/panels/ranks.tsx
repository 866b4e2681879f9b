/**
 * All ranks: a row each, below their host where there are several. Over 32 of
 * them there is a heat map too, and only the rows that are in sight are made.
 */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { straggler } from '../model/advice';
import { hostsOf } from '../model/hosts';
import type { ITraining } from '../model/training';
import { HeatMap } from './heatMap';
import { RankRow, ROW_HEIGHT } from './rankRow';
import { obstacleText } from './texts';

/** So many rows are simply shown. */
const MAX_ROWS = 32;
/** Height of the list of more, in rows. */
const ROWS_IN_SIGHT = 6;

export interface IRanksProps {
  training: ITraining;
  trans: TranslationBundle;
}

export function Ranks({ training, trans }: IRanksProps): React.ReactElement {
  const { controls, connection } = training;
  const { state } = connection;
  const { engines } = state.cluster;
  const list = React.useRef<HTMLUListElement>(null);
  const [top, setTop] = React.useState(0);
  // Ranks of different trials do not wait for each other.
  const late =
    state.running && state.trialCount === null
      ? straggler([...state.times.values()])
      : null;
  const obstacle = controls.obstacle('restart_engine');
  const reason = obstacle === null ? null : obstacleText(obstacle, trans);
  const hosts = hostsOf(state.cluster);
  const severalHosts = hosts.length > 1;
  const row = (index: number): React.ReactElement | null => {
    const engine = engines[index];
    return engine === undefined ? null : (
      <RankRow
        key={engine.rank}
        engine={engine}
        use={state.devices.get(engine.rank)}
        history={state.histories.get(engine.rank)}
        host={severalHosts && engines.length > MAX_ROWS}
        step={state.times.get(engine.rank)?.step ?? null}
        slower={late?.rank === engine.rank ? late.slower : null}
        obstacle={reason}
        onRestart={() => {
          void controls.send('restart_engine', { rank: engine.rank });
        }}
        trans={trans}
      />
    );
  };
  if (engines.length <= MAX_ROWS && severalHosts) {
    return (
      <>
        {hosts.map(({ name, lost, engines: indices }) => (
          <section
            key={name}
            aria-label={name}
            data-testid="jp-dtrain-host"
            data-host={name}
          >
            <h4 className="jp-dtrain-host">
              <span>{name}</span>
              {lost && (
                <span
                  className="jp-dtrain-lost"
                  title={trans.__('Its ranks continue on other hosts')}
                >
                  {trans.__('lost')}
                </span>
              )}
            </h4>
            {indices.length > 0 && (
              <ul className="jp-dtrain-ranks">{indices.map(row)}</ul>
            )}
          </section>
        ))}
      </>
    );
  }
  if (engines.length <= MAX_ROWS) {
    return (
      <ul className="jp-dtrain-ranks">
        {engines.map((_, index) => row(index))}
      </ul>
    );
  }
  const first = Math.max(0, Math.floor(top / ROW_HEIGHT) - 1);
  const last = Math.min(engines.length, first + ROWS_IN_SIGHT + 3);
  return (
    <>
      <HeatMap
        state={state}
        slow={late?.rank ?? null}
        trans={trans}
        onPick={index => {
          list.current?.scrollTo({ top: index * ROW_HEIGHT });
        }}
      />
      <ul
        ref={list}
        className="jp-dtrain-ranks jp-dtrain-many-ranks"
        style={{ height: ROWS_IN_SIGHT * ROW_HEIGHT }}
        tabIndex={0}
        aria-label={trans.__('%1 ranks', String(engines.length))}
        onScroll={event => {
          setTop(event.currentTarget.scrollTop);
        }}
      >
        <li
          aria-hidden="true"
          style={{ height: first * ROW_HEIGHT }}
          role="presentation"
        />
        {engines.slice(first, last).map((_, index) => row(first + index))}
        <li
          aria-hidden="true"
          style={{ height: (engines.length - last) * ROW_HEIGHT }}
          role="presentation"
        />
      </ul>
    </>
  );
}
