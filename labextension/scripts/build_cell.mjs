/**
 * Bundles the view of the cell's output into one module and one style sheet,
 * which the kernel sends to front ends that have nothing of ours, by anywidget.
 *
 * From what tsc made of the sources in labextension/lib; `--watch` goes on.
 */

import process from 'node:process';
import { URL, fileURLToPath } from 'node:url';
import { rspack } from '@rspack/core';

const OUTPUT = new URL('../../jupyter_dtrain/notebook/static', import.meta.url);

const bundler = rspack({
  mode: 'production',
  devtool: false,
  entry: {
    cell_view: [
      './labextension/style/index.css',
      './labextension/style/cell.css',
      './labextension/lib/cell/anywidget.js'
    ]
  },
  output: {
    path: fileURLToPath(OUTPUT),
    filename: '[name].js',
    cssFilename: '[name].css',
    library: { type: 'module' },
    module: true,
    clean: true
  },
  resolve: {
    // A third of the size of React, which JupyterLab would bring.
    alias: {
      react: 'preact/compat',
      'react-dom/client': 'preact/compat/client'
    }
  },
  module: { rules: [{ test: /\.css$/, type: 'css' }] },
  performance: { maxAssetSize: 300_000, maxEntrypointSize: 300_000 }
});

const report = (error, stats) => {
  if (error) {
    throw error;
  }
  process.stdout.write(`${stats.toString({ preset: 'errors-warnings' })}\n`);
  process.exitCode = stats.hasErrors() ? 1 : 0;
};

if (process.argv.includes('--watch')) {
  bundler.watch({}, report);
} else {
  bundler.run((error, stats) => {
    report(error, stats);
    bundler.close(() => {});
  });
}
