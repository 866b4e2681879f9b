/** Facts in a line: `loss 0.3 · epoch 2`, broken between two of them alone. */

import * as React from 'react';

export interface IFactsProps {
  className: string;
  /** Empty ones are left out. */
  facts: readonly string[];
}

export function Facts({ className, facts }: IFactsProps): React.ReactElement {
  const told = facts.filter(Boolean);
  return (
    <div className={className}>
      {told.map((fact, index) => (
        <React.Fragment key={index}>
          {index > 0 && ' '}
          <span className="jp-dtrain-fact">
            {index < told.length - 1 ? `${fact} ·` : fact}
          </span>
        </React.Fragment>
      ))}
    </div>
  );
}
