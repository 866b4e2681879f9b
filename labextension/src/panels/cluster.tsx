/** The engines: a row per rank with how busy its device is. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { DeviceUse } from '../model/state';
import type { ITraining } from '../model/training';
import type { IEngineInfo, Nested } from '../protocol';
import { Control } from './control';
import { formatMemory, formatPercent } from './format';
import { clusterPhaseText, failureText, obstacleText } from './texts';
import { View } from './view';

export class ClusterView extends View {
  protected render(): React.ReactElement | null {
    const training = this.model.current;
    if (training?.connection.status !== 'connected') {
      return null;
    }
    const { trans } = this;
    const { cluster, devices } = training.connection.state;
    return (
      <section
        className="jp-dtrain-section"
        data-testid="jp-dtrain-cluster"
        data-phase={cluster.phase}
        aria-labelledby="jp-dtrain-cluster-title"
      >
        <header>
          <h2 id="jp-dtrain-cluster-title">{trans.__('Cluster')}</h2>
          <span className="jp-dtrain-phase" role="status">
            {clusterPhaseText(cluster.phase, trans)}
          </span>
        </header>
        {cluster.detail !== '' && (
          <p className="jp-dtrain-detail">{cluster.detail}</p>
        )}
        {cluster.phase === 'stopped' && (
          <p className="jp-dtrain-hint">
            {trans.__(
              'Engines start with the first %1 cell, or here. They stay warm for later cells.',
              '%%distribute'
            )}
          </p>
        )}
        {cluster.engines.length > 0 && (
          <ul className="jp-dtrain-ranks">
            {cluster.engines.map(engine => (
              <RankRow
                key={engine.rank}
                engine={engine}
                use={devices.get(engine.rank)}
                trans={trans}
              />
            ))}
          </ul>
        )}
        <ClusterControls training={training} trans={trans} />
      </section>
    );
  }
}

interface IRankRowProps {
  engine: Nested<IEngineInfo>;
  use: DeviceUse | undefined;
  trans: TranslationBundle;
}

function RankRow({ engine, use, trans }: IRankRowProps): React.ReactElement {
  const percent = Math.min(100, Math.max(0, use?.utilization ?? 0));
  return (
    <li
      className="jp-dtrain-rank"
      data-testid="jp-dtrain-rank"
      data-rank={engine.rank}
      title={trans.__('%1, process %2', engine.host, String(engine.pid))}
    >
      <span className="jp-dtrain-rank-name">
        {trans.__('Rank %1', String(engine.rank))}
      </span>
      <span className="jp-dtrain-rank-place">
        {`${engine.device} · ${engine.host}`}
      </span>
      <span className="jp-dtrain-rank-percent">
        {use === undefined ? '–' : formatPercent(use.utilization)}
      </span>
      <div
        className="jp-dtrain-bar"
        role="meter"
        aria-label={trans.__('Utilization of rank %1', String(engine.rank))}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={Math.round(percent)}
      >
        <div style={{ width: `${percent}%` }} />
      </div>
      <span className="jp-dtrain-rank-device" title={engine.device_name}>
        {engine.device_name}
      </span>
      <span className="jp-dtrain-rank-memory">
        {use !== undefined && formatMemory(use.memory_used, use.memory_total)}
      </span>
    </li>
  );
}

interface IClusterControlsProps {
  training: ITraining;
  trans: TranslationBundle;
}

function ClusterControls(props: IClusterControlsProps): React.ReactElement {
  const { training, trans } = props;
  const { controls, connection } = training;
  const [count, setCount] = React.useState('');
  const reason = (command: 'start_cluster' | 'stop_cluster'): string | null => {
    const obstacle = controls.obstacle(command);
    return obstacle === null ? null : obstacleText(obstacle, trans);
  };
  const stopReason = reason('stop_cluster');
  const { failure } = controls;
  const { phase } = connection.state.cluster;
  const number = Number.parseInt(count, 10);
  return (
    <>
      {phase === 'stopped' || phase === 'starting' ? (
        <div className="jp-dtrain-controls">
          <input
            type="number"
            min={1}
            className="jp-dtrain-count"
            data-testid="jp-dtrain-engine-count"
            placeholder={trans.__('auto')}
            aria-label={trans.__('Number of engines (empty: one a device)')}
            title={trans.__('Number of engines (empty: one a device)')}
            value={count}
            onChange={event => {
              setCount(event.target.value);
            }}
          />
          <Control
            label={trans.__('Start engines')}
            testId="jp-dtrain-start-cluster"
            reason={reason('start_cluster')}
            onClick={() => {
              void controls.send('start_cluster', number > 0 ? number : null);
            }}
          />
        </div>
      ) : (
        <div className="jp-dtrain-controls">
          <Control
            label={trans.__('Stop engines')}
            testId="jp-dtrain-stop-cluster"
            reason={stopReason}
            onClick={() => {
              void controls.send('stop_cluster');
            }}
          />
          {stopReason !== null && (
            <span className="jp-dtrain-hint">{stopReason}</span>
          )}
        </div>
      )}
      {failure !== null && failure.command !== 'stop_run' && (
        <p className="jp-dtrain-error-text" role="alert">
          {failureText(failure, trans)}
        </p>
      )}
    </>
  );
}
