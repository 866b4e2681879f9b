/** The colours and fonts of JupyterLab's theme for a canvas, which cannot read CSS variables. */

export interface IChartTheme {
  line: string;
  text: string;
  grid: string;
  font: string;
}

/** Read the theme that applies to `node` now. */
export function readTheme(node: Element): IChartTheme {
  const style = getComputedStyle(node);
  const variable = (name: string, fallback: string): string => {
    const value = style.getPropertyValue(name).trim();
    return value === '' ? fallback : value;
  };
  return {
    line: variable('--jp-brand-color1', '#1976d2'),
    text: variable('--jp-ui-font-color1', '#212121'),
    grid: variable('--jp-border-color2', '#e0e0e0'),
    font: `11px ${variable('--jp-ui-font-family', 'sans-serif')}`
  };
}
