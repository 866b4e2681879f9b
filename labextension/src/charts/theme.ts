/** The colours and fonts of JupyterLab's theme for a canvas, which cannot read CSS variables. */

export interface IChartTheme {
  /** Colours of lines; there are as many as `NUM_COLORS`. */
  lines: string[];
  text: string;
  grid: string;
  background: string;
  font: string;
}

/** How many colours of lines base.css has. */
export const NUM_COLORS = 8;

/** The CSS colour of a line. */
export function lineColor(index: number): string {
  return `var(--jp-dtrain-line-${(index % NUM_COLORS) + 1})`;
}

/** Read the theme that applies to `node` now. */
export function readTheme(node: Element): IChartTheme {
  const style = getComputedStyle(node);
  const variable = (name: string, fallback: string): string => {
    const value = style.getPropertyValue(name).trim();
    return value === '' ? fallback : value;
  };
  return {
    lines: Array.from({ length: NUM_COLORS }, (_, index) =>
      variable(`--jp-dtrain-line-${index + 1}`, '#1976d2')
    ),
    text: variable('--jp-ui-font-color1', '#212121'),
    // Not that of borders, which are white in the high-contrast theme.
    grid: variable(
      '--jp-layout-color2',
      variable('--jp-border-color2', '#e0e0e0')
    ),
    background: variable('--jp-layout-color1', '#ffffff'),
    font: `11px ${variable('--jp-ui-font-family', 'sans-serif')}`
  };
}
