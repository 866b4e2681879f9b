/** One rank: how busy its device is, now and over the last minutes. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { refreshIcon } from '@jupyterlab/ui-components';
import { HISTORY_S, type DeviceHistory } from '../model/deviceHistory';
import type { DeviceUse } from '../model/state';
import type { IEngineInfo, Nested } from '../protocol';
import { formatCount, formatMemory, formatPercent } from './format';

/** Height of a row where all rows have one height, in pixels. */
export const ROW_HEIGHT = 66;

const SPARK_WIDTH = 56;
const SPARK_HEIGHT = 14;

export interface IRankRowProps {
  engine: Nested<IEngineInfo>;
  use: DeviceUse | undefined;
  history: DeviceHistory | undefined;
  /** Whether to say which host it is on: there are several. */
  host: boolean;
  /** Steps that the rank has finished in this run; `null`: not known. */
  step: number | null;
  /** How many times longer than most it takes; `null`: it does not. */
  slower: number | null;
  /** Why its engine cannot be restarted; `null`: it can. */
  obstacle: string | null;
  onRestart: () => void;
  trans: TranslationBundle;
}

export function RankRow(props: IRankRowProps): React.ReactElement {
  const { engine, use, history, host, step, slower, obstacle, trans } = props;
  const percent = Math.min(100, Math.max(0, use?.utilization ?? 0));
  const rank = String(engine.rank);
  const facts = [
    use === undefined ? '' : formatMemory(use.memory_used, use.memory_total),
    typeof use?.temperature !== 'number'
      ? ''
      : `${Math.round(use.temperature)} °C`,
    typeof use?.power !== 'number' ? '' : `${Math.round(use.power)} W`
  ].filter(Boolean);
  return (
    <li
      className="jp-dtrain-rank"
      data-testid="jp-dtrain-rank"
      data-rank={engine.rank}
      title={trans.__('%1, process %2', engine.host, String(engine.pid))}
    >
      <span className="jp-dtrain-rank-name">{trans.__('Rank %1', rank)}</span>
      <span className="jp-dtrain-rank-place">
        {host ? `${engine.device} · ${engine.host}` : engine.device}
      </span>
      <Sparkline history={history} />
      <span className="jp-dtrain-rank-percent">
        {use === undefined ? '–' : formatPercent(use.utilization)}
      </span>
      <button
        type="button"
        className="jp-dtrain-restart"
        data-testid="jp-dtrain-restart-engine"
        aria-label={trans.__('Restart the engine of rank %1', rank)}
        aria-disabled={obstacle !== null}
        title={
          obstacle ??
          trans.__(
            'Restart the engine of rank %1. The run resumes from its last snapshot, with the same result.',
            rank
          )
        }
        onClick={() => {
          if (obstacle === null) {
            props.onRestart();
          }
        }}
      >
        <refreshIcon.react tag="span" width="14px" height="14px" />
      </button>
      <div
        className="jp-dtrain-bar"
        role="meter"
        aria-label={trans.__('Utilization of rank %1', rank)}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={Math.round(percent)}
      >
        <div style={{ width: `${percent}%` }} />
      </div>
      <div className="jp-dtrain-rank-facts">
        <span className="jp-dtrain-rank-device" title={engine.device_name}>
          {slower !== null && (
            <span
              className="jp-dtrain-straggler"
              title={trans.__(
                'Straggler: step time relative to the median rank'
              )}
            >
              {trans.__('%1× slower', slower.toFixed(1))}
            </span>
          )}
          {step === null
            ? engine.device_name
            : `${trans.__('step %1', formatCount(step))} · ${engine.device_name}`}
        </span>
        <span className="jp-dtrain-rank-memory">{facts.join(' · ')}</span>
      </div>
    </li>
  );
}

interface ISparklineProps {
  history: DeviceHistory | undefined;
}

function Sparkline({ history }: ISparklineProps): React.ReactElement {
  const points = (history?.entries() ?? []).map(({ ago, percent }) => {
    const x = SPARK_WIDTH * (1 - ago / HISTORY_S);
    const y = (SPARK_HEIGHT - 2) * (1 - Math.min(100, percent) / 100) + 1;
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  });
  return (
    <svg
      className="jp-dtrain-sparkline"
      width={SPARK_WIDTH}
      height={SPARK_HEIGHT}
      aria-hidden="true"
      data-points={points.length}
    >
      <polyline points={points.join(' ')} />
    </svg>
  );
}
