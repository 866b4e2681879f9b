/** Many ranks at a glance: a square each, the fuller the busier. */

import * as React from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { readTheme } from '../charts/theme';
import type { TrainingState } from '../model/state';
import { formatPercent } from './format';

const GAP = 2;
const MIN_CELL = 8;
const MAX_CELL = 18;

export interface IHeatMapProps {
  state: TrainingState;
  /** A rank that holds up the others. */
  slow: number | null;
  /** The square of the engine with this index was clicked. */
  onPick: (index: number) => void;
  trans: TranslationBundle;
}

export function HeatMap(props: IHeatMapProps): React.ReactElement {
  const { state, slow, onPick, trans } = props;
  const canvas = React.useRef<HTMLCanvasElement>(null);
  const { engines } = state.cluster;
  const use = engines.map(
    engine => state.devices.get(engine.rank)?.utilization ?? 0
  );
  // After every change of the state: the squares are on a canvas.
  React.useEffect(() => {
    if (canvas.current !== null) {
      const marked = engines.findIndex(engine => engine.rank === slow);
      draw(canvas.current, use, marked);
    }
  });
  const mean = use.reduce((sum, one) => sum + one, 0) / use.length;
  const least = use.indexOf(Math.min(...use));
  const text = trans.__(
    'Utilization of %1 ranks: mean %2, min %3 on rank %4',
    String(use.length),
    formatPercent(mean),
    formatPercent(use[least] ?? 0),
    String(engines[least]?.rank ?? 0)
  );
  return (
    <canvas
      ref={canvas}
      className="jp-dtrain-heat-map"
      data-testid="jp-dtrain-heat-map"
      role="img"
      aria-label={text}
      title={text}
      onClick={event => {
        const { columns, pitch } = layout(
          event.currentTarget.clientWidth,
          use.length
        );
        const column = Math.floor(event.nativeEvent.offsetX / pitch);
        const row = Math.floor(event.nativeEvent.offsetY / pitch);
        onPick(row * columns + column);
      }}
    />
  );
}

function layout(
  width: number,
  count: number
): { columns: number; pitch: number; rows: number } {
  const wanted = Math.ceil(Math.sqrt(2 * count));
  const cell = Math.floor(width / wanted) - GAP;
  const pitch = Math.min(MAX_CELL, Math.max(MIN_CELL, cell)) + GAP;
  const columns = Math.max(1, Math.floor((width + GAP) / pitch));
  return { columns, pitch, rows: Math.ceil(count / columns) };
}

function draw(
  canvas: HTMLCanvasElement,
  use: readonly number[],
  marked: number
): void {
  const ratio = window.devicePixelRatio;
  const width = canvas.parentElement?.clientWidth ?? 0;
  const { paddingLeft, paddingRight } = getComputedStyle(
    canvas.parentElement ?? canvas
  );
  const inner = width - parseFloat(paddingLeft) - parseFloat(paddingRight);
  const { columns, pitch, rows } = layout(inner, use.length);
  const height = rows * pitch - GAP;
  canvas.style.width = `${inner}px`;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(inner * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext('2d');
  if (context === null) {
    return;
  }
  const theme = readTheme(canvas);
  const side = pitch - GAP;
  context.scale(ratio, ratio);
  use.forEach((percent, index) => {
    const x = (index % columns) * pitch;
    const y = Math.floor(index / columns) * pitch;
    context.globalAlpha = 1;
    context.fillStyle = theme.grid;
    context.fillRect(x, y, side, side);
    context.globalAlpha = Math.min(1, Math.max(0, percent / 100));
    context.fillStyle = theme.lines[0] ?? theme.text;
    context.fillRect(x, y, side, side);
    if (index === marked) {
      context.globalAlpha = 1;
      context.lineWidth = 2;
      context.strokeStyle = theme.text;
      context.strokeRect(x + 1, y + 1, side - 2, side - 2);
    }
  });
}
