/** A button that stays reachable when it cannot act, and says why. */

import * as React from 'react';

export interface IControlProps {
  label: string;
  testId: string;
  className?: string;
  /** What the button does, where its label is too short to say it. */
  hint?: string;
  /** Why the button cannot act; `null`: it can. */
  reason: string | null;
  onClick: () => void;
}

/**
 * `aria-disabled` rather than `disabled`: the keyboard focus stays on a button
 * that was just pressed, and its reason can be read.
 */
export function Control(props: IControlProps): React.ReactElement {
  const { label, testId, className, hint, reason, onClick } = props;
  return (
    <button
      type="button"
      className={`jp-dtrain-button ${className ?? ''}`}
      data-testid={testId}
      aria-disabled={reason !== null}
      title={reason ?? hint ?? label}
      onClick={() => {
        if (reason === null) {
          onClick();
        }
      }}
    >
      {label}
    </button>
  );
}
