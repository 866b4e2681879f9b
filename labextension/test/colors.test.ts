import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { NUM_COLORS } from '../src/charts/theme';

/** What lines are drawn on in JupyterLab's themes: a chart, a selected row of the table. */
const BACKGROUNDS = {
  light: ['#ffffff', '#eeeeee'],
  dark: ['#212121', '#111111', '#424242']
};

/** The colours of lines as base.css has them; the first is the theme's own. */
function linesOf(selector: string): string[] {
  const style = readFileSync('labextension/style/base.css', 'utf-8');
  const block = style.slice(style.indexOf(`${selector} {\n  --jp-dtrain-line`));
  const [, rules = ''] = /\{([^}]*)\}/.exec(block) ?? [];
  return [...rules.matchAll(/line-\d: (#[0-9a-f]{6})/g)].map(
    ([, color = '']) => color
  );
}

/** WCAG's relative luminance. */
function luminance(color: string): number {
  const [red = 0, green = 0, blue = 0] = [1, 3, 5].map(place => {
    const value = parseInt(color.slice(place, place + 2), 16) / 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one: string, other: string): number {
  const both = [luminance(one), luminance(other)];
  return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
}

describe('lines of charts', () => {
  const themes = {
    light: linesOf(':root'),
    dark: linesOf("html[theme='dark'] body:not([data-jp-theme-name])")
  };
  for (const theme of ['light', 'dark'] as const) {
    it(`are seen in a ${theme} theme`, () => {
      assert.equal(themes[theme].length, NUM_COLORS - 1);
      assert.equal(new Set(themes[theme]).size, NUM_COLORS - 1);
      for (const line of themes[theme]) {
        for (const background of BACKGROUNDS[theme]) {
          const found = contrast(line, background);
          assert.ok(found >= 3, `${line} on ${background}: ${found}`);
        }
      }
    });
  }
});
