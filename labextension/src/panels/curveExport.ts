/** The buttons of a chart that save it: as a picture, and as a table. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { LineChart } from '../charts/lineChart';
import { download, drawPicture, fileName } from '../charts/picture';
import { toCsv, type ITableCurve } from '../model/csv';
import type { Details } from '../model/details';
import type { ICurveRun } from '../model/lines';

export interface IExportOptions {
  label: string;
  chart: LineChart;
  trans: TranslationBundle;
  /** Whose curves they are. */
  training: () => ICurveSource | null;
}

export interface ICurveSource {
  curveRuns: () => readonly ICurveRun[];
  archive: { details: Details };
}

export function exportButtons(options: IExportOptions): HTMLElement[] {
  const { label, trans } = options;
  return [
    button('PNG', trans.__('PNG: save the chart of %1', label), () => {
      savePicture(options);
    }),
    button('CSV', trans.__('CSV: save all points of %1', label), () => {
      void saveTable(options);
    })
  ];
}

function savePicture({ label, chart, training }: IExportOptions): void {
  const { picture, lines } = chart;
  if (picture === null) {
    return;
  }
  const { canvas, theme } = picture;
  const name = training()?.curveRuns()[0]?.name ?? '';
  drawPicture(canvas, theme, label, lines).toBlob(blob => {
    if (blob !== null) {
      download(blob, `${fileName(name, label)}.png`);
    }
  });
}

async function saveTable(options: IExportOptions): Promise<void> {
  const { label, chart } = options;
  const training = options.training();
  const runs = training?.curveRuns() ?? [];
  const curves: ITableCurve[] = [];
  for (const { key } of chart.lines) {
    const [runId = '', curve = ''] = key.split('\n');
    const run = runs.find(one => one.runId === runId);
    let series = run?.series.get(curve);
    if (run === undefined || series === undefined) {
      continue;
    }
    if (series.thinned && training !== null) {
      series = await training.archive.details.all(runId, curve);
    }
    const { steps: step, times: time, values: value } = series;
    curves.push({ run: run.name, curve, points: { step, time, value } });
  }
  const blob = new Blob([toCsv(curves)], { type: 'text/csv' });
  download(blob, `${fileName(runs[0]?.name ?? '', label)}.csv`);
}

function button(text: string, title: string, act: () => void): HTMLElement {
  const node = document.createElement('button');
  node.type = 'button';
  node.className = 'jp-dtrain-link';
  node.textContent = text;
  node.title = title;
  node.setAttribute('aria-label', title);
  node.addEventListener('click', act);
  return node;
}
