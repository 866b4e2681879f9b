/** A place in a React view for a node that draws itself. */

import * as React from 'react';

export function Host({ node }: { node: HTMLElement }): React.ReactElement {
  const place = React.useRef<HTMLDivElement>(null);
  React.useLayoutEffect(() => {
    place.current?.append(node);
    return () => {
      node.remove();
    };
  }, [node]);
  return <div ref={place} />;
}
