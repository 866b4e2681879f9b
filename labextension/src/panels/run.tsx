/** The run: how far it is, how fast, how well, and a button to stop it. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import type { NotebookCells } from '../cells';
import {
  EXAMPLE,
  EXAMPLE_SETUP,
  LOAD_EXTENSION,
  resumeCode
} from '../model/code';
import type { Run } from '../model/state';
import type { ITrialCount } from '../model/sweeps';
import type { ITraining, TrainingModel } from '../model/training';
import { Control } from './control';
import { DetachedRuns } from './detachedRuns';
import { formatCount, formatDuration } from './format';
import { RunControls } from './runControls';
import { RunFacts } from './runFacts';
import { runPhaseText } from './texts';
import { View } from './view';

/** The elapsed time goes on between two updates of a run with long steps. */
const TICK_MS = 1000;

export class RunView extends View {
  constructor(
    id: string,
    model: TrainingModel,
    trans: TranslationBundle,
    private readonly _cells: NotebookCells
  ) {
    super(id, model, trans);
  }

  protected render(): React.ReactElement | null {
    const training = this.model.current;
    const run = training?.connection.state.run ?? null;
    if (training === null || run === null) {
      return training?.connection.status === 'connected' ? (
        <NoRun training={training} cells={this._cells} trans={this.trans} />
      ) : null;
    }
    return (
      <RunSection
        training={training}
        run={run}
        cells={this._cells}
        trans={this.trans}
      />
    );
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._startTicking();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    if (this.isVisible) {
      this._startTicking();
    }
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._stopTicking();
  }

  protected override onBeforeDetach(message: Message): void {
    this._stopTicking();
    super.onBeforeDetach(message);
  }

  private _startTicking(): void {
    this._stopTicking();
    this._timer = setInterval(() => {
      if (this.model.current?.connection.state.running === true) {
        this.schedule();
      }
    }, TICK_MS);
  }

  private _stopTicking(): void {
    clearInterval(this._timer);
  }

  private _timer: ReturnType<typeof setInterval> | undefined;
}

interface INoRunProps {
  training: ITraining;
  cells: NotebookCells;
  trans: TranslationBundle;
}

function NoRun({ training, cells, trans }: INoRunProps): React.ReactElement {
  const { cluster, strays } = training.connection.state;
  // A cell that is running may wait for them.
  const starting = cluster.phase === 'starting';
  return (
    <section
      className="jp-dtrain-section"
      data-testid="jp-dtrain-run"
      data-phase="none"
      aria-labelledby="jp-dtrain-run-title"
    >
      <header>
        <h2 id="jp-dtrain-run-title">{trans.__('Run')}</h2>
      </header>
      {starting ? (
        <p className="jp-dtrain-hint">
          {trans.__(
            'The engines are starting. A waiting %1 cell runs when they are up.',
            '%%distribute'
          )}
        </p>
      ) : (
        <>
          <p className="jp-dtrain-hint">
            {trans.__(
              'Nothing has been run yet. Make this the first line of a training cell and run it:'
            )}
          </p>
          <pre>%%distribute</pre>
          <div className="jp-dtrain-controls">
            <Control
              label={trans.__('Insert an example')}
              hint={trans.__(
                'Insert a cell that makes a model, and one that trains it on two engines'
              )}
              testId="jp-dtrain-example"
              reason={null}
              onClick={() => {
                cells.insert(EXAMPLE_SETUP);
                cells.insert(EXAMPLE);
              }}
            />
          </div>
        </>
      )}
      <DetachedRuns runs={strays} cells={cells} trans={trans} />
    </section>
  );
}

interface IRunProps {
  training: ITraining;
  run: Run;
  cells: NotebookCells;
  trans: TranslationBundle;
}

function RunSection(props: IRunProps): React.ReactElement {
  const { training, run, cells, trans } = props;
  const { connection, controls } = training;
  const { state } = connection;
  const phase = controls.stopping ? 'stopping' : run.phase;
  const elapsed =
    run.elapsed +
    (state.running ? Math.max(0, Date.now() - state.runReceived) / 1000 : 0);
  return (
    <section
      className="jp-dtrain-section"
      data-testid="jp-dtrain-run"
      data-phase={phase}
      data-run-id={run.run_id}
      aria-labelledby="jp-dtrain-run-title"
    >
      <header>
        <h2 id="jp-dtrain-run-title">{trans.__('Run')}</h2>
        <span className="jp-dtrain-run-name" title={run.name}>
          {run.name}
        </span>
        <span
          className="jp-dtrain-phase"
          data-testid="jp-dtrain-run-phase"
          role="status"
        >
          {runPhaseText(phase, trans)}
        </span>
      </header>
      <Trials count={state.trialCount} trans={trans} />
      <RunFacts
        run={run}
        elapsed={elapsed}
        running={state.running}
        trans={trans}
      />
      {run.error !== null && (
        <pre
          className="jp-dtrain-error"
          data-testid="jp-dtrain-run-error"
          role="alert"
          tabIndex={0}
        >
          {run.error}
        </pre>
      )}
      {run.phase === 'lost' && <WayOn run={run} trans={trans} />}
      {run.phase === 'alone' ? (
        <DetachedRuns
          runs={[{ run_id: run.run_id, ended: false }]}
          cells={cells}
          trans={trans}
        />
      ) : (
        <RunControls training={training} trans={trans} />
      )}
      <DetachedRuns runs={state.strays} cells={cells} trans={trans} />
    </section>
  );
}

/** How many of a cell's trials have ended; the rest of the section is about one of them. */
function Trials({
  count,
  trans
}: {
  count: ITrialCount | null;
  trans: TranslationBundle;
}): React.ReactElement | null {
  if (count === null) {
    return null;
  }
  const { ended, pruned, total, remaining, over } = count;
  const text =
    pruned === 0
      ? trans.__('Trials: %1 of %2', String(ended), String(total))
      : trans.__(
          'Trials: %1 of %2 (%3 pruned)',
          String(ended),
          String(total),
          String(pruned)
        );
  const eta =
    remaining === null || over
      ? ''
      : trans.__('ETA %1', formatDuration(remaining));
  return (
    <div className="jp-dtrain-progress" data-testid="jp-dtrain-trials">
      <div className="jp-dtrain-progress-texts">
        <span>{text}</span>
        {eta !== '' && <span>{eta}</span>}
      </div>
      <div
        className="jp-dtrain-bar"
        role="progressbar"
        aria-label={trans.__('Ended trials')}
        aria-valuemin={0}
        aria-valuemax={total}
        aria-valuenow={ended}
        aria-valuetext={[text, eta].filter(Boolean).join(', ')}
      >
        <div style={{ width: `${(100 * ended) / total}%` }} />
      </div>
    </div>
  );
}

/** What to do with a run whose kernel has ended before it. */
function WayOn({
  run,
  trans
}: Pick<IRunProps, 'run' | 'trans'>): React.ReactElement {
  if (run.detached) {
    return (
      <p className="jp-dtrain-hint">
        {trans.__(
          'The kernel ended, and the run finished without it. Its checkpoints are listed under %1.',
          trans.__('Checkpoints')
        )}
      </p>
    );
  }
  const code = resumeCode(run.run_id);
  if (run.checkpoint === null || code === null) {
    return (
      <p className="jp-dtrain-hint">
        {trans.__(
          'The kernel ended during this run, before the first checkpoint. Run the cell again.'
        )}
      </p>
    );
  }
  return (
    <>
      <p className="jp-dtrain-hint">
        {trans.__(
          'The kernel ended during this run. To continue from step %1, run these lines:',
          formatCount(run.checkpoint)
        )}
      </p>
      <pre>{`${LOAD_EXTENSION}\n${code}`}</pre>
    </>
  );
}
