/** Exponential smoothing of a curve. */

/**
 * The exponential moving average of `values`, of which each keeps `weight` of
 * the average before it. The first values are corrected for the start from
 * nothing (as Adam's moments are), and a gap stays one.
 */
export function smoothed(
  values: readonly (number | null)[],
  weight: number
): (number | null)[] {
  if (weight <= 0) {
    return [...values];
  }
  let average = 0;
  let left = 1; // weight ** number of values so far
  return values.map(value => {
    if (value === null) {
      return null;
    }
    average = weight * average + (1 - weight) * value;
    left *= weight;
    return average / (1 - left);
  });
}
