/** The hosts of a cluster, each with its ranks. */

import type { IClusterUpdate, Nested } from '../protocol';

export interface IHost {
  name: string;
  /** Whether it can be used no longer; its ranks are on others then. */
  lost: boolean;
  /** Places of its engines in the list of all. */
  engines: number[];
}

/** Returns the hosts in the order of their first ranks, and after them those that were lost. */
export function hostsOf(cluster: Nested<IClusterUpdate>): IHost[] {
  const found = new Map<string, IHost>();
  cluster.engines.forEach(({ host }, index) => {
    const known = found.get(host);
    if (known === undefined) {
      found.set(host, { name: host, lost: false, engines: [index] });
    } else {
      known.engines.push(index);
    }
  });
  for (const name of cluster.lost_hosts) {
    const known = found.get(name);
    if (known === undefined) {
      found.set(name, { name, lost: true, engines: [] });
    } else {
      known.lost = true; // its engines are about to be replaced
    }
  }
  return [...found.values()];
}
