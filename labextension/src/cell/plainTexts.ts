/** Texts as they are in the sources, where there is no JupyterLab to translate. */

import type { TranslationBundle } from '@jupyterlab/translation';

type Args = unknown[];

const one = (text: string, ...args: Args): string =>
  text.replace(/%(\d)/g, (_, number: string) => String(args[+number - 1]));
const many = (text: string, plural: string, n: number, ...args: Args): string =>
  one(n === 1 ? text : plural, n, ...args);
const oneIn = (_: string, text: string, ...args: Args): string =>
  one(text, ...args);
const manyIn = (
  _: string,
  text: string,
  plural: string,
  n: number,
  ...args: Args
): string => many(text, plural, n, ...args);

export const plainTexts: TranslationBundle = {
  __: one,
  _n: many,
  _p: oneIn,
  _np: manyIn,
  gettext: one,
  ngettext: many,
  pgettext: oneIn,
  npgettext: manyIn,
  dcnpgettext: (_, ...rest) => manyIn(...rest)
};
