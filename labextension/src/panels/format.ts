/** Numbers as a person reads them, in a few characters. */

// Made once: making one takes longer than a hundred uses of it.
const COMPACT = new Intl.NumberFormat(undefined, {
  notation: 'compact',
  maximumFractionDigits: 3
});
const WHOLE = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const TENTHS = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

/** Four significant digits: `0.3128`, `6.2e-6`; a dash for what is not known. */
export function formatValue(value: number | null): string {
  if (value === null) {
    return '–';
  }
  const rounded = Number(value.toPrecision(4));
  // As Python does: zeros behind the point have to be counted.
  return rounded !== 0 && Math.abs(rounded) < 1e-4
    ? rounded.toExponential()
    : String(rounded);
}

/** A run's last loss: `0.3128`, `nan`; `null`: it is not known. */
export function formatLoss(run: {
  loss: number | null;
  odd_loss: string | null;
}): string | null {
  return run.odd_loss ?? (run.loss === null ? null : formatValue(run.loss));
}

/** A number on an axis, short from ten thousand on: `50K`, `1.25M`. */
export function formatTick(value: number): string {
  return Math.abs(value) < 10_000 ? formatValue(value) : COMPACT.format(value);
}

/** A count with the locale's grouping, whole from ten on. */
export function formatCount(value: number | null): string {
  if (value === null) {
    return '–';
  }
  return (Math.abs(value) < 10 ? TENTHS : WHOLE).format(value);
}

export function formatPercent(value: number): string {
  return `${Math.round(value)}%`;
}

/** Bytes used of bytes there are, in the unit of the larger: `1.2 / 16 GiB`. */
export function formatMemory(used: number, total: number): string {
  let unit = 0;
  let scale = 1;
  while (total / scale >= 1024 && unit < BYTE_UNITS.length - 1) {
    scale *= 1024;
    unit += 1;
  }
  return `${short(used / scale)} / ${short(total / scale)} ${BYTE_UNITS[unit] ?? ''}`;
}

/** Bytes in the largest unit that leaves a whole: `340 MiB`. */
export function formatBytes(bytes: number): string {
  let unit = 0;
  let scale = 1;
  while (bytes / scale >= 1024 && unit < BYTE_UNITS.length - 1) {
    scale *= 1024;
    unit += 1;
  }
  const value = bytes / scale;
  return `${unit === 0 ? String(bytes) : short(value)} ${BYTE_UNITS[unit] ?? ''}`;
}

/** Seconds in the largest unit that fits: `40 s`, `3 min`, `5 h`, `2 d`. */
export function formatAge(seconds: number): string {
  const units: [number, string][] = [
    [86_400, 'd'],
    [3600, 'h'],
    [60, 'min']
  ];
  const [size, unit] = units.find(([one]) => seconds >= one) ?? [1, 's'];
  return `${Math.max(0, Math.floor(seconds / size))} ${unit}`;
}

function short(value: number): string {
  return value.toFixed(value < 10 ? 1 : 0);
}

/** Seconds with their unit: `0.25 s`, `12.4 s`, and from a minute `2:05`. */
export function formatSeconds(seconds: number): string {
  return seconds < 60
    ? `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`
    : formatDuration(seconds);
}

/** Seconds as `0:07`, `12:34` or `1:02:03`. */
export function formatDuration(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (value: number): string => String(value).padStart(2, '0');
  const minutes = Math.floor(whole / 60) % 60;
  const hours = Math.floor(whole / 3600);
  return hours > 0
    ? `${hours}:${two(minutes)}:${two(whole % 60)}`
    : `${minutes}:${two(whole % 60)}`;
}

/** Names of trials without the words that all of them begin with: `lr=0.1` for `sweep lr=0.1`. */
export function shortNames(names: readonly string[]): string[] {
  if (names.length < 2) {
    return [...names];
  }
  const words = names.map(name => name.split(' '));
  const [first = []] = words;
  const shared = Math.min(...words.map(({ length }) => length - 1));
  let same = 0;
  while (same < shared && words.every(other => other[same] === first[same])) {
    same += 1;
  }
  const short = words.map(one => one.slice(same).join(' '));
  // Other names, as `run 1` and `run 2`, say nothing without their first words.
  return short.every(name => /^[^\s=]+=/.test(name)) ? short : [...names];
}

/** A moment in seconds since the epoch: the time, and the day if it is not that of `now`. */
export function formatWhen(seconds: number, now = Date.now() / 1000): string {
  const [date, today] = [new Date(seconds * 1000), new Date(now * 1000)];
  return date.toLocaleString(undefined, {
    ...(date.toDateString() !== today.toDateString() && {
      month: 'short',
      day: 'numeric'
    }),
    hour: '2-digit',
    minute: '2-digit'
  });
}
