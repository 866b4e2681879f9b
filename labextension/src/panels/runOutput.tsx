/** What a run has printed, one rank at a time: all but rank 0 with --output all. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Archive, PastRun, RunOutput } from '../model/archive';
import { hasEnded } from '../model/state';

/** While a run goes on, which nothing tells of. */
const REFRESH_MS = 2000;

export interface IRunOutputProps {
  run: PastRun;
  archive: Archive;
  trans: TranslationBundle;
}

export function RunOutputView(props: IRunOutputProps): React.ReactElement {
  const { run, archive, trans } = props;
  const [rank, setRank] = React.useState(0);
  const [output, setOutput] = React.useState<RunOutput | null>(null);
  const [error, setError] = React.useState<string | null>(null);
  const text = React.useRef<HTMLPreElement>(null);
  const isRunning = !hasEnded(run.phase);
  const current = React.useRef(run);
  current.current = run;
  React.useEffect(() => {
    let isGone = false;
    const load = async (): Promise<void> => {
      try {
        const found = await archive.outputOf(current.current, rank);
        if (!isGone) {
          setOutput(found);
          setError(null);
        }
      } catch (failure) {
        if (!isGone) {
          setError(
            failure instanceof Error ? failure.message : String(failure)
          );
        }
      }
    };
    void load();
    const timer = isRunning
      ? setInterval(() => {
          void load();
        }, REFRESH_MS)
      : undefined;
    return () => {
      isGone = true;
      clearInterval(timer);
    };
  }, [archive, run.run_id, rank, isRunning]);
  // The end is what one wants to see, unless one has scrolled away from it.
  const wasAtEnd = React.useRef(true);
  React.useLayoutEffect(() => {
    if (text.current !== null && wasAtEnd.current) {
      text.current.scrollTop = text.current.scrollHeight;
    }
  }, [output]);
  const ranks = output?.ranks ?? [];
  return (
    <div className="jp-dtrain-output" data-testid="jp-dtrain-output">
      {ranks.some(one => one !== rank) && (
        <label>
          <span>{trans.__('Rank')}</span>
          <select
            value={rank}
            onChange={event => {
              wasAtEnd.current = true;
              setRank(Number(event.target.value));
            }}
          >
            {[...new Set([rank, ...ranks])]
              .sort((a, b) => a - b)
              .map(one => (
                <option key={one} value={one}>
                  {one}
                </option>
              ))}
          </select>
        </label>
      )}
      {output?.is_cut === true && (
        <p className="jp-dtrain-hint">
          {trans.__(
            'Only the last lines. The full output is in %1.',
            folderOf(run)
          )}
        </p>
      )}
      {error !== null ? (
        <p className="jp-dtrain-error-text" role="alert">
          {error}
        </p>
      ) : output === null ? (
        <p className="jp-dtrain-hint">{trans.__('Reading the output…')}</p>
      ) : output.text === '' ? (
        <p className="jp-dtrain-hint">
          {trans.__('Rank %1 has printed nothing.', String(rank))}
        </p>
      ) : (
        <pre
          ref={text}
          tabIndex={0}
          role="region"
          aria-label={trans.__('Output of rank %1', String(rank))}
          onScroll={({ currentTarget: node }) => {
            wasAtEnd.current =
              node.scrollHeight - node.scrollTop - node.clientHeight < 4;
          }}
        >
          {output.text}
        </pre>
      )}
    </div>
  );
}

function folderOf(run: PastRun): string {
  return `dtrain-runs/${run.run_id}/output`;
}
