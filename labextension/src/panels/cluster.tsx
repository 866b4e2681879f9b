/** The engines: a row per rank with how busy its device is. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { RUN_COMMANDS } from '../model/controls';
import type { ITraining } from '../model/training';
import { Control } from './control';
import { Ranks } from './ranks';
import { clusterPhaseText, failureText, obstacleText } from './texts';
import { View } from './view';

export class ClusterView extends View {
  protected render(): React.ReactElement | null {
    const training = this.model.current;
    if (training?.connection.status !== 'connected') {
      return null;
    }
    const { trans } = this;
    const { cluster } = training.connection.state;
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
              'Engines start with the first %1 cell, or here, and are reused by later cells.',
              '%%distribute'
            )}
          </p>
        )}
        {cluster.engines.length > 0 && (
          <Ranks training={training} trans={trans} />
        )}
        <ClusterControls training={training} trans={trans} />
      </section>
    );
  }
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
  const { answer, failure } = controls;
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
            aria-label={trans.__('Number of engines (empty: one per device)')}
            title={trans.__('Number of engines (empty: one per device)')}
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
              void controls.send('start_cluster', {
                num_engines: number > 0 ? number : null
              });
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
      {answer?.command === 'restart_engine' && (
        <p className="jp-dtrain-hint" role="status">
          {answer.message}
        </p>
      )}
      {failure !== null && !RUN_COMMANDS.includes(failure.command) && (
        <p className="jp-dtrain-error-text" role="alert">
          {failureText(failure, trans)}
        </p>
      )}
    </>
  );
}
