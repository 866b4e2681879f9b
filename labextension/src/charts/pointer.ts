/** What mouse and keyboard do to a chart: zoom, move, read values. */

import type uPlot from 'uplot';

export interface IPointerHandlers {
  /** The pointer is at this x; `null`: nowhere. */
  onHover: (x: number | null) => void;
  /** Show this part; `null`: all. */
  onZoom: (range: readonly [number, number] | null) => void;
  /** Make the part `factor` times as wide, and move it by its width. */
  onMove: (factor: number, shift: number, center?: number) => void;
}

/** A narrower selection is a click. */
const MIN_PIXELS = 4;

/**
 * The cursor's part of uPlot's options: drag zooms, Shift+drag moves.
 * `onPointer` is told where the pointer is, in pixels from the left.
 */
export function pointerOptions(
  onPointer: (left: number | null) => void,
  handlers: IPointerHandlers
): uPlot.Cursor {
  return {
    y: false,
    points: { size: 6 },
    drag: { x: true, y: false, setScale: false },
    bind: {
      dblclick: () => () => {
        handlers.onZoom(null);
        return null;
      },
      mousedown: (plot, _target, handler) => event => {
        if (event.shiftKey) {
          startMoving(plot, event, handlers);
          return null;
        }
        return handler(event);
      },
      mouseleave: (_plot, _target, handler) => event => {
        onPointer(null);
        return handler(event);
      },
      mousemove: (plot, _target, handler) => event => {
        handler(event);
        const { left } = plot.cursor;
        if (left !== undefined && left >= 0) {
          onPointer(left);
        }
        return null;
      }
    }
  };
}

/** The end of a drag: zoom to what was selected. */
export function onSelect(plot: uPlot, handlers: IPointerHandlers): void {
  const { left, width } = plot.select;
  if (width >= MIN_PIXELS) {
    const low = plot.posToVal(left, 'x');
    const high = plot.posToVal(left + width, 'x');
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    handlers.onZoom([low, high]);
  }
}

function startMoving(
  plot: uPlot,
  event: MouseEvent,
  handlers: IPointerHandlers
): void {
  event.preventDefault();
  let last = event.clientX;
  const width = plot.over.clientWidth;
  const move = (moved: MouseEvent): void => {
    handlers.onMove(1, (last - moved.clientX) / width);
    last = moved.clientX;
  };
  const stop = (): void => {
    document.removeEventListener('mousemove', move);
    document.removeEventListener('mouseup', stop);
  };
  document.addEventListener('mousemove', move);
  document.addEventListener('mouseup', stop);
}

/** Ctrl and the wheel zoom where the pointer is: the wheel alone scrolls. */
export function onWheel(
  plot: uPlot,
  event: WheelEvent,
  handlers: IPointerHandlers
): void {
  const { left } = plot.cursor;
  if (event.ctrlKey && left !== undefined && left >= 0) {
    event.preventDefault();
    const factor = event.deltaY < 0 ? 0.8 : 1.25;
    handlers.onMove(factor, 0, plot.posToVal(left, 'x'));
  }
}

/** What the keyboard does to the chart that has the focus. */
export function onKey(event: KeyboardEvent, handlers: IPointerHandlers): void {
  const actions: Record<string, () => void> = {
    '+': () => {
      handlers.onMove(0.5, 0);
    },
    '=': () => {
      handlers.onMove(0.5, 0);
    },
    '-': () => {
      handlers.onMove(2, 0);
    },
    '0': () => {
      handlers.onZoom(null);
    },
    ArrowLeft: () => {
      handlers.onMove(1, -0.25);
    },
    ArrowRight: () => {
      handlers.onMove(1, 0.25);
    }
  };
  const { ctrlKey, altKey, metaKey } = event;
  const action = actions[event.key];
  if (action !== undefined && !ctrlKey && !altKey && !metaKey) {
    event.preventDefault();
    event.stopPropagation();
    action();
  }
}
