import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  attachCode,
  isDistributed,
  loadCode,
  resumeCode,
  toggleDistribute
} from '../src/model/code';

/** Ids that a folder of somebody else could hold: what they would run. */
const HOSTILE = [
  'x"); import os; os.system("id") #',
  'x\nimport os',
  '{__import__("os").system("id")}',
  '$HOME',
  '--trust x',
  'x y',
  "x'",
  '',
  '-x',
  'a'.repeat(129)
];

describe('Code for a run', () => {
  it('names the run by its id', () => {
    assert.equal(
      attachCode('2026-11-21-153012-digits'),
      '%load_ext jupyter_dtrain\n%distribute attach 2026-11-21-153012-digits'
    );
    assert.equal(resumeCode('run-1'), '%distribute resume run-1');
    assert.equal(resumeCode('run-1', 120), '%distribute resume run-1@120');
    assert.match(
      loadCode('run-1', 120) ?? '',
      /load_checkpoint\("run-1", 120\)/
    );
  });

  it('is none where the id is not one of ours', () => {
    for (const id of HOSTILE) {
      assert.equal(attachCode(id), null, id);
      assert.equal(resumeCode(id, 1), null, id);
      assert.equal(loadCode(id, 1), null, id);
    }
  });
});

describe('Distribute this cell', () => {
  it('puts the line on top, and takes it and its options away again', () => {
    const cell = 'for x in loader:\n    step(x)';
    const on = toggleDistribute(cell);
    assert.equal(on, `%%distribute\n${cell}`);
    assert.equal(isDistributed(on), true);
    assert.equal(toggleDistribute(on), cell);
    assert.equal(
      toggleDistribute(`\n%%distribute --engines 4 --name a\n${cell}`),
      cell
    );
    assert.equal(toggleDistribute('%%distribute'), '');
  });

  it('leaves a cell with another magic alone', () => {
    assert.equal(toggleDistribute('%%bash\nls'), null);
    assert.equal(isDistributed('%%distributed\n1'), false);
  });
});
