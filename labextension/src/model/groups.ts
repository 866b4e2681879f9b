/** Which curves share a chart: those of one quantity, in training and after. */

/** What a curve was measured on, as far as its name says. */
export type Part = 'train' | 'validation' | 'test';

export interface IMember {
  name: string;
  part: Part;
}

export interface IGroup {
  /** The quantity: `loss` for `loss`, `val_loss` and `test/loss`. */
  stem: string;
  /** Training first. */
  members: IMember[];
}

const PARTS: Record<string, Part> = {
  train: 'train',
  training: 'train',
  val: 'validation',
  valid: 'validation',
  validation: 'validation',
  eval: 'validation',
  test: 'test'
};
const WORDS = Object.keys(PARTS).join('|');
const BEFORE = new RegExp(`^(${WORDS})[\\s/_.-]+(.+)$`, 'i');
const AFTER = new RegExp(`^(.+?)[\\s/_.-]+(${WORDS})$`, 'i');
const ORDER: readonly Part[] = ['train', 'validation', 'test'];

/** Group the names of curves: the loss first, then in the order in which they appear. */
export function groupCurves(names: Iterable<string>): IGroup[] {
  const groups = new Map<string, IGroup>();
  for (const name of names) {
    const { stem, part } = split(name);
    const key = stem.toLowerCase();
    let group = groups.get(key);
    if (group === undefined) {
      group = { stem, members: [] };
      groups.set(key, group);
    }
    group.members.push({ name, part });
  }
  for (const { members } of groups.values()) {
    members.sort((a, b) => ORDER.indexOf(a.part) - ORDER.indexOf(b.part));
  }
  const isLoss = ({ stem }: IGroup): boolean => stem.toLowerCase() === 'loss';
  const all = [...groups.values()];
  return [...all.filter(isLoss), ...all.filter(group => !isLoss(group))];
}

function split(name: string): { stem: string; part: Part } {
  const before = BEFORE.exec(name);
  if (before !== null) {
    return { stem: before[2] ?? name, part: partOf(before[1]) };
  }
  const after = AFTER.exec(name);
  return after === null
    ? { stem: name, part: 'train' }
    : { stem: after[1] ?? name, part: partOf(after[2]) };
}

function partOf(word: string | undefined): Part {
  return PARTS[(word ?? '').toLowerCase()] ?? 'train';
}
