/** Detached runs that no kernel follows, each with a button that does. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { NotebookCells } from '../cells';
import { attachCode } from '../model/code';
import type { DetachedRun } from '../model/state';
import { Control } from './control';

export interface IDetachedRunsProps {
  runs: readonly DetachedRun[];
  cells: NotebookCells;
  trans: TranslationBundle;
}

export function DetachedRuns(
  props: IDetachedRunsProps
): React.ReactElement | null {
  const { runs, cells, trans } = props;
  if (runs.length === 0) {
    return null;
  }
  return (
    <ul className="jp-dtrain-detached" aria-label={trans.__('Detached runs')}>
      {runs.map(({ run_id, ended }) => {
        const code = attachCode(run_id);
        return (
          <li key={run_id} data-testid="jp-dtrain-detached" data-ended={ended}>
            <span title={run_id}>
              {ended
                ? trans.__('%1 finished without a kernel.', run_id)
                : trans.__('%1 is running without a kernel.', run_id)}
            </span>
            <Control
              label={ended ? trans.__('Get results') : trans.__('Attach')}
              hint={
                ended
                  ? trans.__(
                      'Run a cell that returns its results to the notebook'
                    )
                  : trans.__(
                      'Run a cell that follows it and returns its results to the notebook'
                    )
              }
              testId="jp-dtrain-attach"
              reason={
                code === null
                  ? trans.__('This run was not recorded by jupyter_dtrain')
                  : null
              }
              onClick={() => {
                if (code !== null) {
                  cells.insertAndRun(code);
                }
              }}
            />
          </li>
        );
      })}
    </ul>
  );
}
