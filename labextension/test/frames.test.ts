import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it, mock } from 'node:test';
import { Frames } from '../src/panels/frames';

/** A page whose frames and clock go on when they are told to. */
class FakePage {
  now = 0;
  private _frames = new Map<number, () => void>();
  private _asked = 0;

  start(): void {
    mock.timers.enable({ apis: ['setTimeout'] });
    mock.method(performance, 'now', () => this.now);
    Object.assign(globalThis, {
      requestAnimationFrame: (draw: () => void) => {
        this._frames.set((this._asked += 1), draw);
        return this._asked;
      },
      cancelAnimationFrame: (id: number) => {
        this._frames.delete(id);
      }
    });
  }

  stop(): void {
    mock.timers.reset();
    mock.restoreAll();
  }

  /** Let time go on by so many milliseconds, with a frame in each 16 of them. */
  pass(ms: number, each: () => void = () => undefined): void {
    for (const end = this.now + ms; this.now < end;) {
      each();
      this.now += 16;
      mock.timers.tick(16);
      const asked = [...this._frames.values()];
      this._frames.clear();
      for (const draw of asked) {
        draw();
      }
    }
  }
}

describe('Frames', () => {
  const page = new FakePage();
  beforeEach(() => {
    page.start();
  });
  afterEach(() => {
    page.stop();
  });

  it('draws what changes in every frame four times a second, the last of it too', () => {
    let changes = 0;
    const drawn: number[] = [];
    const frames = new Frames({
      update: () => drawn.push(changes),
      interval: 250
    });
    page.pass(2000, () => {
      changes += 1;
      frames.schedule();
    });
    assert.ok(drawn.length >= 7 && drawn.length <= 9, String(drawn.length));
    page.pass(300);
    assert.equal(drawn[drawn.length - 1], changes);
  });

  it('draws what has one interval in the same frames', () => {
    const drawn: number[][] = [[], []];
    const [one, other] = drawn.map(
      times =>
        new Frames({
          update: () => times.push(page.now),
          interval: 250
        })
    );
    one?.schedule();
    page.pass(112);
    other?.schedule();
    page.pass(2000, () => {
      one?.schedule();
      other?.schedule();
    });
    const [first = [], second = []] = drawn;
    assert.ok(first.length >= 7, String(first));
    assert.deepEqual(first.slice(-6), second.slice(-6));
  });

  it('draws more seldom what takes long, and no more seldom than every few seconds', () => {
    const times: number[] = [];
    const frames = new Frames({
      update: () => {
        times.push(page.now);
        page.now += times.length < 5 ? 100 : 2000;
      },
      interval: 250
    });
    page.pass(20_000, () => {
      frames.schedule();
    });
    const pauses = times.slice(1).map((time, i) => time - (times[i] ?? 0));
    assert.ok(
      pauses.slice(0, 4).every(pause => pause >= 1200 && pause < 1700),
      String(pauses)
    );
    assert.ok(
      pauses.slice(4).every(pause => pause >= 5000 && pause < 5300),
      String(pauses)
    );
    frames.hurry();
    const before = times.length;
    page.pass(16);
    assert.equal(times.length, before + 1);
  });

  it('loses nothing that comes while a long drawing is noted', () => {
    let changes = 0;
    let drawn = -1;
    const frames = new Frames({
      update: () => {
        drawn = changes;
        page.now += 300;
      },
      interval: 250
    });
    frames.schedule();
    page.pass(16); // its end is noted with the next step
    changes = 1;
    frames.hurry();
    page.pass(16);
    assert.equal(drawn, 1);
    changes = 2;
    page.now += 300;
    frames.schedule(); // asks for a frame, and is put off before it comes
    page.pass(16);
    page.pass(6000);
    assert.equal(drawn, 2);
  });

  it('draws all parts of an update before the next', () => {
    let left = 0;
    const updates: number[] = [];
    const frames = new Frames({
      update: () => {
        assert.equal(left, 0);
        updates.push(page.now);
        left = 30; // frames: longer than the interval
      },
      drawSome: () => (left -= 1) > 0,
      interval: 250
    });
    page.pass(20_000, () => {
      frames.schedule();
    });
    assert.equal(left, 0);
    assert.ok(updates.length >= 3 && updates.length <= 5, String(updates));
  });

  it('draws what arrives bit by bit in a part of the time, and the last of it at once', () => {
    const times: number[] = [];
    let arrived = 0;
    let drawn = 0;
    const frames = new Frames({
      update: () => {
        drawn = arrived;
        times.push(page.now);
        page.now += 10 * drawn; // the more there are, the longer it takes
      },
      interval: 500
    });
    page.pass(16);
    frames.scheduleSoon();
    page.pass(16);
    assert.equal(times.length, 1); // the first is waited for
    page.pass(10_000, () => {
      arrived = Math.min(50, arrived + 1);
      frames.scheduleSoon();
    });
    const after = times.slice(1);
    assert.ok(after.length > 2 && after.length < 20, String(times));
    arrived = 51;
    frames.hurry();
    page.pass(16);
    assert.equal(drawn, 51);
  });

  it('goes on with what is left of an update without another one', () => {
    let updates = 0;
    let left = 0;
    const frames = new Frames({
      update: () => (updates += 1),
      drawSome: () => left > 0 && (left -= 1) > 0,
      interval: 250
    });
    frames.schedule();
    page.pass(16);
    left = 3; // scrolled into view
    frames.resume();
    page.pass(64);
    assert.deepEqual([updates, left], [1, 0]);
  });

  it('draws at once what the user waits for', () => {
    let drawn = 0;
    const frames = new Frames({ update: () => (drawn += 1), interval: 250 });
    frames.schedule();
    page.pass(16);
    assert.equal(drawn, 1);
    frames.schedule();
    page.pass(16);
    assert.equal(drawn, 1);
    frames.hurry();
    page.pass(16);
    assert.equal(drawn, 2);
  });
});
