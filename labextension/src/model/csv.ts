/** Curves as a table that a spreadsheet reads. */

import type { IColumns } from './series';

export interface ITableCurve {
  run: string;
  curve: string;
  points: IColumns;
}

/** One row a point: run, curve, step, time (ISO 8601, UTC), value. */
export function toCsv(curves: readonly ITableCurve[]): string {
  const rows = ['run,curve,step,time,value'];
  for (const { run, curve, points } of curves) {
    const start = `${quoted(run)},${quoted(curve)}`;
    for (let i = 0; i < points.step.length; i++) {
      const seconds = points.time[i] ?? NaN;
      const time = Number.isFinite(seconds)
        ? new Date(seconds * 1000).toISOString()
        : '';
      rows.push(
        `${start},${String(points.step[i])},${time},${points.value[i] ?? ''}`
      );
    }
  }
  return `${rows.join('\n')}\n`;
}

function quoted(text: string): string {
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
