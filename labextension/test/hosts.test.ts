import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { hostsOf } from '../src/model/hosts';

function cluster(
  hosts: string[],
  lost: string[] = []
): Parameters<typeof hostsOf>[0] {
  return {
    phase: 'running',
    engines: hosts.map((host, rank) => ({
      rank,
      host,
      pid: rank,
      device: 'cpu',
      device_name: 'CPU'
    })),
    lost_hosts: lost,
    detail: ''
  };
}

describe('the hosts of a cluster', () => {
  it('are in the order of their first ranks, which may be anywhere', () => {
    assert.deepEqual(hostsOf(cluster(['h2', 'h1', 'h2'])), [
      { name: 'h2', lost: false, engines: [0, 2] },
      { name: 'h1', lost: false, engines: [1] }
    ]);
  });

  it('stay in sight when they are lost, without ranks, and are back with another cluster', () => {
    assert.deepEqual(hostsOf(cluster(['h1', 'h1'], ['h2'])), [
      { name: 'h1', lost: false, engines: [0, 1] },
      { name: 'h2', lost: true, engines: [] }
    ]);
    assert.deepEqual(
      hostsOf(cluster(['h1', 'h2'])).map(({ lost }) => lost),
      [false, false]
    );
  });

  it('are lost at once where their engines are still listed', () => {
    assert.equal(hostsOf(cluster(['h1', 'h2'], ['h2']))[1]?.lost, true);
  });
});
