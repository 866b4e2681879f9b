/** What was done with the cell that its author may want to know. */

import * as React from 'react';
import { View } from './view';

export class NoticesView extends View {
  protected render(): React.ReactElement | null {
    const notices = this.model.current?.connection.state.notices ?? [];
    if (notices.length === 0) {
      return null;
    }
    return (
      <section
        className="jp-dtrain-section"
        data-testid="jp-dtrain-notices"
        aria-labelledby="jp-dtrain-notices-title"
      >
        <header>
          <h2 id="jp-dtrain-notices-title">{this.trans.__('Notices')}</h2>
        </header>
        <ul className="jp-dtrain-notices" aria-live="polite">
          {notices.map(notice => (
            <li key={notice.text}>{notice.text}</li>
          ))}
        </ul>
      </section>
    );
  }
}
