/** What changed from one run to another. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Comparison } from '../model/archive';

export interface IComparisonProps {
  comparison: Comparison;
  before: string;
  after: string;
  onClose: () => void;
  trans: TranslationBundle;
}

export function ComparisonView(props: IComparisonProps): React.ReactElement {
  const { comparison, before, after, onClose, trans } = props;
  const { changes, cell } = comparison;
  return (
    <div
      className="jp-dtrain-comparison"
      data-testid="jp-dtrain-comparison"
      role="region"
      aria-label={trans.__('Comparison of two runs')}
    >
      <header>
        <h3>{trans.__('%1 → %2', before, after)}</h3>
        <button type="button" className="jp-dtrain-link" onClick={onClose}>
          {trans.__('Close')}
        </button>
      </header>
      {changes.length === 0 ? (
        <p className="jp-dtrain-hint">
          {trans.__('Arguments and package versions are identical.')}
        </p>
      ) : (
        <table>
          <thead>
            <tr>
              <th scope="col">{trans.__('Changed')}</th>
              <th scope="col">{trans.__('from')}</th>
              <th scope="col">{trans.__('to')}</th>
            </tr>
          </thead>
          <tbody>
            {changes.map(change => (
              <tr key={change.name}>
                <th scope="row">{change.name}</th>
                <td>{change.before ?? '–'}</td>
                <td>{change.after ?? '–'}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {cell.length === 0 ? (
        <p className="jp-dtrain-hint">{trans.__('Same cell.')}</p>
      ) : (
        <pre className="jp-dtrain-diff" tabIndex={0}>
          {cell.map((line, index) => (
            <span key={index} data-change={kindOf(line)}>
              {`${line}\n`}
            </span>
          ))}
        </pre>
      )}
    </div>
  );
}

function kindOf(line: string): string {
  switch (line[0]) {
    case '+':
      return 'added';
    case '-':
      return 'removed';
    case '@':
      return 'place';
    default:
      return 'same';
  }
}
