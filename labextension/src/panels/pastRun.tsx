/** One past run: a row that unfolds to what can be done with it. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { lineColor } from '../charts/theme';
import { runColor } from '../model/lines';
import type { NotebookCells } from '../cells';
import type { Archive, PastRun } from '../model/archive';
import { durationOf } from '../model/runList';
import { Facts } from './facts';
import { formatCount, formatSeconds, formatValue, formatWhen } from './format';
import { RunOutputView } from './runOutput';
import { runPhaseText } from './texts';

export interface IPastRunProps {
  run: PastRun;
  /** The runs that it can be compared with. */
  others: readonly PastRun[];
  /** Which of the drawn runs it is; `null`: none. */
  color: number | null;
  archive: Archive;
  cells: NotebookCells;
  opened: boolean;
  onToggle: () => void;
  trans: TranslationBundle;
}

export function PastRunRow(props: IPastRunProps): React.ReactElement {
  const { run, color, archive, opened, onToggle, trans } = props;
  const pinned = archive.isPinned(run.run_id);
  // What was asked for, while the curves are being fetched.
  const [wanted, setWanted] = React.useState(pinned);
  const pin = async (value: boolean): Promise<void> => {
    setWanted(value);
    await archive.pin(run, value);
    setWanted(archive.isPinned(run.run_id));
  };
  const duration = durationOf(run);
  const facts = [
    run.loss === null ? '' : trans.__('loss %1', formatValue(run.loss)),
    trans._n('%2 step', '%2 steps', run.steps, formatCount(run.steps)),
    duration === null ? '' : formatSeconds(duration),
    formatWhen(run.started)
  ];
  return (
    <li
      className="jp-dtrain-past-run"
      data-testid="jp-dtrain-past-run"
      data-run-id={run.run_id}
      data-phase={run.phase}
    >
      <div className="jp-dtrain-past-run-head">
        <input
          type="checkbox"
          checked={wanted}
          title={trans.__('Also show the curves of this run')}
          aria-label={trans.__('Show the curves of %1', run.name)}
          onChange={event => {
            void pin(event.target.checked);
          }}
        />
        {color !== null && (
          <span
            className="jp-dtrain-swatch"
            style={{ borderTopColor: lineColor(runColor(color)) }}
          />
        )}
        <button
          type="button"
          className="jp-dtrain-past-run-name"
          aria-expanded={opened}
          title={run.name}
          onClick={onToggle}
        >
          {run.name}
        </button>
        <span className="jp-dtrain-phase">
          {runPhaseText(run.phase, trans)}
        </span>
      </div>
      <Facts className="jp-dtrain-past-run-facts" facts={facts} />
      {run.tags.length > 0 && (
        <ul className="jp-dtrain-tags" aria-label={trans.__('Tags')}>
          {run.tags.map(tag => (
            <li key={tag} title={tag}>
              {tag}
            </li>
          ))}
        </ul>
      )}
      {opened && <Actions {...props} />}
    </li>
  );
}

function Actions(props: IPastRunProps): React.ReactElement {
  const { run, others, archive, cells, trans } = props;
  const [deleting, setDeleting] = React.useState(false);
  const [gone, setGone] = React.useState('');
  const [showsOutput, setShowsOutput] = React.useState(false);
  const goToCell = async (): Promise<void> => {
    const cell = await archive.cellOf(run);
    if (cell !== null && !(await cells.goTo(cell))) {
      setGone(
        cell.notebook === null
          ? trans.__('No open notebook has this cell.')
          : trans.__('This cell is no longer in %1.', cell.notebook)
      );
    }
  };
  return (
    <div className="jp-dtrain-past-run-actions">
      {run.error !== null && (
        <pre className="jp-dtrain-error" tabIndex={0}>
          {run.error}
        </pre>
      )}
      <Field
        label={trans.__('Name')}
        value={run.name}
        onDone={text => archive.rename(run, text)}
      />
      <Field
        label={trans.__('Tags')}
        value={run.tags.join(', ')}
        onDone={text => archive.tag(run, text)}
      />
      {others.length > 0 && (
        <label>
          <span>{trans.__('Compare')}</span>
          <select
            value=""
            onChange={event => {
              const other = others.find(
                one => one.run_id === event.target.value
              );
              if (other !== undefined) {
                const [before, after] =
                  other.number < run.number ? [other, run] : [run, other];
                void archive.compare(before, after);
              }
            }}
          >
            <option value="">{trans.__('with…')}</option>
            {others.map(other => (
              <option key={other.run_id} value={other.run_id}>
                {`${other.name} (${formatWhen(other.started)})`}
              </option>
            ))}
          </select>
        </label>
      )}
      <div className="jp-dtrain-controls">
        {deleting ? (
          <>
            <span>{trans.__('Delete this run and its files?')}</span>
            <button
              type="button"
              className="jp-dtrain-button jp-dtrain-stop"
              onClick={() => void archive.delete(run)}
            >
              {trans.__('Delete')}
            </button>
            <button
              type="button"
              className="jp-dtrain-button"
              onClick={() => {
                setDeleting(false);
              }}
            >
              {trans.__('Cancel')}
            </button>
          </>
        ) : (
          <>
            <button
              type="button"
              className="jp-dtrain-button"
              title={trans.__('Go to the cell of this run')}
              onClick={() => void goToCell()}
            >
              {trans.__('Go to cell')}
            </button>
            <button
              type="button"
              className="jp-dtrain-button"
              aria-expanded={showsOutput}
              title={trans.__('Show what this run printed')}
              onClick={() => {
                setShowsOutput(!showsOutput);
              }}
            >
              {trans.__('Output')}
            </button>
            <button
              type="button"
              className="jp-dtrain-button"
              onClick={() => {
                setDeleting(true);
              }}
            >
              {trans.__('Delete…')}
            </button>
          </>
        )}
      </div>
      <p className="jp-dtrain-hint" role="status">
        {gone}
      </p>
      {showsOutput && (
        <RunOutputView run={run} archive={archive} trans={trans} />
      )}
    </div>
  );
}

interface IFieldProps {
  label: string;
  value: string;
  onDone: (text: string) => Promise<void>;
}

/** A text that is sent with Enter, or when the field is left. */
function Field({ label, value, onDone }: IFieldProps): React.ReactElement {
  const [text, setText] = React.useState(value);
  React.useEffect(() => {
    setText(value);
  }, [value]);
  const send = (): void => {
    if (text.trim() !== value) {
      void onDone(text.trim());
    }
  };
  return (
    <label>
      <span>{label}</span>
      <input
        type="text"
        className="jp-dtrain-field"
        title={text}
        value={text}
        onChange={event => {
          setText(event.target.value);
        }}
        onBlur={send}
        onKeyDown={event => {
          if (event.key === 'Enter') {
            send();
          } else if (event.key === 'Escape') {
            setText(value);
          }
        }}
      />
    </label>
  );
}
