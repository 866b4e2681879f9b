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
      <Differences comparison={comparison} trans={trans} />
    </div>
  );
}

export interface IDifferencesProps {
  comparison: Comparison;
  trans: TranslationBundle;
}

/** Everything that differs: values in one table, then texts as diffs. */
export function Differences(props: IDifferencesProps): React.ReactElement {
  const { comparison, trans } = props;
  const { changes, hyperparameters, functions, cell, unknown } = comparison;
  const values = [...hyperparameters, ...changes];
  const same = [
    ...(hyperparameters.length === 0 && unknown.length === 0
      ? [trans.__('Same hyperparameters.')]
      : []),
    ...(changes.length === 0
      ? [trans.__('Same arguments and package versions.')]
      : []),
    ...(functions.length === 0 && cell.length === 0
      ? [trans.__('Same code.')]
      : [])
  ];
  return (
    <>
      {unknown.map(name => (
        <p key={name} className="jp-dtrain-hint">
          {trans.__(
            '%1 was recorded by an older version, without hyperparameters.',
            name
          )}
        </p>
      ))}
      {values.length > 0 && (
        <table>
          <thead>
            <tr>
              <th scope="col">{trans.__('Changed')}</th>
              <th scope="col">{trans.__('from')}</th>
              <th scope="col">{trans.__('to')}</th>
            </tr>
          </thead>
          <tbody>
            {values.map(change => (
              <tr key={change.name}>
                <th scope="row">{change.name}</th>
                <td>{change.before ?? '–'}</td>
                <td>{change.after ?? '–'}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {functions.map(({ name, lines }) => (
        <Diff key={name} title={name} lines={lines} />
      ))}
      {cell.length > 0 && <Diff title={trans.__('Cell')} lines={cell} />}
      {same.length > 0 && <p className="jp-dtrain-hint">{same.join(' ')}</p>}
    </>
  );
}

interface IDiffProps {
  title: string;
  lines: readonly string[];
}

function Diff({ title, lines }: IDiffProps): React.ReactElement {
  return (
    <>
      <h4>{title}</h4>
      <pre
        className="jp-dtrain-diff"
        data-testid="jp-dtrain-diff"
        aria-label={title}
        role="region"
        tabIndex={0}
      >
        {lines.map((line, index) => (
          <span key={index} data-change={kindOf(line)}>
            {`${line}\n`}
          </span>
        ))}
      </pre>
    </>
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
