/** Makes the widget known to JupyterLab's manager of widgets. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ITrainingModel } from '../tokens';
import { PROTOCOL_VERSION, WIDGET_MODULE } from '../protocol';

/**
 * Register the run's widget, where there are widgets at all: a Lab whose
 * environment has no ipywidgets has no `@jupyter-widgets/base` either. Its
 * cells show the summary, and all else works.
 */
export async function registerRunWidget(
  app: JupyterFrontEnd,
  training: ITrainingModel
): Promise<void> {
  let base;
  try {
    base = await import('@jupyter-widgets/base');
  } catch {
    return;
  }
  const registry = await app.resolveOptionalService(
    base.IJupyterWidgetRegistry
  );
  registry?.registerWidget({
    name: WIDGET_MODULE,
    version: `${PROTOCOL_VERSION}.0.0`,
    exports: async () => {
      const { RunModel, viewFor } = await import('./widget');
      return { RunModel, RunView: viewFor(training) };
    }
  });
}
