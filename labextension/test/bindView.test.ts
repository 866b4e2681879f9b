import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { bindView, type IRunModel } from '../src/cell/bindView';
import type { ISnapshot } from '../src/protocol';
import { recorded } from './fakes';

const SUMMARY = `dtrain-${'0123456789abcdef'.repeat(2)}`;
const SNAPSHOT = recorded('digits-two-engines')[0] as ISnapshot;

/** A widget's model, and the view that it is bound to. */
class Bound implements IRunModel {
  constructor(private readonly _state: Record<string, unknown>) {
    this.unbind = bindView(this, summary => {
      this.summary = summary;
      return {
        show: snapshot => this.shown.push(snapshot),
        dispose: () => (this.disposed += 1)
      };
    });
  }

  readonly unbind: () => void;
  readonly shown: ISnapshot[] = [];
  summary: string | null | undefined;
  disposed = 0;

  get(name: string): unknown {
    return this._state[name];
  }

  on(event: string, callback: () => void): void {
    assert.equal(event, 'change:snapshot');
    this._callbacks.add(callback);
  }

  off(event: string, callback: () => void): void {
    assert.equal(event, 'change:snapshot');
    this._callbacks.delete(callback);
  }

  /** The kernel writes the trait. */
  set(snapshot: ISnapshot | null): void {
    this._state.snapshot = snapshot;
    this._callbacks.forEach(callback => {
      callback();
    });
  }

  private readonly _callbacks = new Set<() => void>();
}

describe('bindView', () => {
  it('shows what there is and what comes', () => {
    const late = new Bound({ summary: SUMMARY, snapshot: SNAPSHOT });
    assert.equal(late.summary, SUMMARY);
    assert.deepEqual(late.shown, [SNAPSHOT]);

    const early = new Bound({ summary: SUMMARY, snapshot: null });
    assert.deepEqual(early.shown, []);
    early.set(SNAPSHOT);
    early.set(null);
    early.set(SNAPSHOT);
    assert.deepEqual(early.shown, [SNAPSHOT, SNAPSHOT]);
  });

  it('ends with the view', () => {
    const bound = new Bound({ summary: SUMMARY, snapshot: null });
    bound.unbind();
    bound.set(SNAPSHOT);
    assert.deepEqual([bound.shown, bound.disposed], [[], 1]);
  });

  it('hides nothing but a summary', () => {
    const others = ['', 'jp-main-dock-panel', `${SUMMARY}, body`, 7, undefined];
    for (const summary of [...others, ` ${SUMMARY}`, `${SUMMARY}\n`]) {
      assert.equal(new Bound({ summary }).summary, null, String(summary));
    }
  });
});
