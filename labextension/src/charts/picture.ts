/** A chart as a PNG, with its name and what its lines are. */

import type { ILine } from './data';
import type { IChartTheme } from './theme';

const TITLE = 22;
const ROW = 16;
const MARGIN = 8;

/** Draw a chart's canvas with a title and a legend above it. */
export function drawPicture(
  canvas: HTMLCanvasElement,
  theme: IChartTheme,
  title: string,
  lines: readonly ILine[]
): HTMLCanvasElement {
  const ratio = canvas.width / (canvas.clientWidth || canvas.width);
  const rows = lines.length > 1 ? lines : [];
  const top = MARGIN + TITLE + rows.length * ROW;
  const picture = document.createElement('canvas');
  picture.width = canvas.width + 2 * MARGIN * ratio;
  picture.height = canvas.height + (top + MARGIN) * ratio;
  const context = picture.getContext('2d');
  if (context === null) {
    return picture;
  }
  context.fillStyle = theme.background;
  context.fillRect(0, 0, picture.width, picture.height);
  context.save();
  context.scale(ratio, ratio);
  context.fillStyle = theme.text;
  context.font = `bold ${theme.font.replace('11px', '13px')}`;
  context.textBaseline = 'top';
  context.fillText(title, MARGIN, MARGIN);
  context.font = theme.font;
  rows.forEach((line, index) => {
    const y = MARGIN + TITLE + index * ROW;
    context.strokeStyle = theme.lines[line.color] ?? theme.text;
    context.lineWidth = 2;
    context.setLineDash(line.dashed ? [4, 2] : []);
    context.beginPath();
    context.moveTo(MARGIN, y + 6);
    context.lineTo(MARGIN + 16, y + 6);
    context.stroke();
    context.fillText(line.label, MARGIN + 22, y);
  });
  context.restore();
  context.drawImage(canvas, MARGIN * ratio, top * ratio);
  return picture;
}

/** Let the browser save `blob` as a file. */
export function download(blob: Blob, fileName: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = fileName;
  document.body.append(link);
  link.click();
  link.remove();
  // The browser has begun to read it by then.
  setTimeout(() => {
    URL.revokeObjectURL(link.href);
  }, 60_000);
}

/** A name that every file system takes. */
export function fileName(...parts: string[]): string {
  return parts
    .join('-')
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .replace(/^-|-$/g, '');
}
