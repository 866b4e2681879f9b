/**
 * Which points of a curve to keep where there are more of them than pixels.
 *
 * Of each stretch of the x axis the smallest and the largest value stay, so
 * that a spike survives; a mean or every n-th point would hide it. Both ends of
 * the curve stay. A gap takes the place of the largest value, as in the kernel
 * (`runs/curves.py`).
 */

/**
 * The indices from `start` to `end` (exclusive) that are to be kept, in order:
 * the first, the last, and at most two for each of `stretches` stretches of
 * equal width.
 */
export function extremes(
  x: readonly number[],
  y: readonly (number | null)[],
  start: number,
  end: number,
  stretches: number
): number[] {
  const kept: number[] = [];
  if (end - start <= 2 * stretches) {
    for (let i = start; i < end; i++) {
      kept.push(i);
    }
    return kept;
  }
  const first = x[start] ?? 0;
  const width = (x[end - 1] ?? 0) - first;
  let stretch = -1;
  let low = start;
  let high = start;
  const keep = (): void => {
    if (stretch >= 0) {
      kept.push(Math.min(low, high));
      if (low !== high) {
        kept.push(Math.max(low, high));
      }
    }
  };
  for (let i = start; i < end; i++) {
    const part = width > 0 ? ((x[i] ?? first) - first) / width : 0;
    const at = Math.min(stretches - 1, Math.floor(part * stretches));
    if (at !== stretch) {
      keep();
      stretch = at;
      low = high = i;
    } else {
      const value = y[i] ?? Infinity;
      if (value < (y[low] ?? Infinity)) {
        low = i;
      }
      if (value > (y[high] ?? Infinity)) {
        high = i;
      }
    }
  }
  keep();
  const inside = kept.filter(index => index > start && index < end - 1);
  return [start, ...inside, end - 1];
}

/** The first index whose value is not below `value`, in ascending `sorted`. */
export function firstNotBelow(
  sorted: readonly number[],
  value: number
): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((sorted[middle] ?? Infinity) < value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/** The index whose value is nearest to `value`; -1 where there is none. */
export function nearest(sorted: readonly number[], value: number): number {
  const above = firstNotBelow(sorted, value);
  const below = above - 1;
  if (above >= sorted.length) {
    return below;
  }
  const toBelow = value - (sorted[below] ?? -Infinity);
  return toBelow <= (sorted[above] ?? Infinity) - value ? below : above;
}
