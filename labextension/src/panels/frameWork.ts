/** What is done in one frame of an update that takes several. */

/** Lines that are drawn in one frame: each takes up to a millisecond, and each further frame costs a page like JupyterLab several. */
const LINES = 12;
/** Charts that are drawn in it whatever their lines. */
const CHARTS = 2;
/** Milliseconds after which the rest waits for the next frame. */
const MAX_MS = 8;

/** What is to be done with a chart: drawn, which the browser paints afterwards, or only told in words. */
export type Due = 'drawn' | 'told' | 'nothing';

/**
 * Do as much of what waits as fits into a frame; return whether more is left.
 * Words are told as many as there is time for, beside what is drawn.
 */
export function workInFrame<T>(
  waiting: Iterable<T>,
  dueOf: (item: T) => Due,
  work: (item: T, due: Due) => { readonly lines: number },
  now: () => number = () => performance.now()
): boolean {
  const began = now();
  let charts = 0;
  let lines = 0;
  let isMore = false;
  for (const item of waiting) {
    const due = dueOf(item);
    if (due === 'nothing') {
      continue;
    }
    if (now() - began > MAX_MS) {
      return true;
    }
    if (due === 'told') {
      work(item, due);
    } else if (charts < CHARTS || lines < LINES) {
      charts += 1;
      lines += work(item, due).lines;
    } else {
      isMore = true;
    }
  }
  return isMore;
}
