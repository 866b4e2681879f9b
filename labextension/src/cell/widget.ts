/**
 * The run in the output of its cell, as a widget of JupyterLab and Notebook 7.
 *
 * The kernel names these classes and sends no script, and a notebook that is
 * opened can name them and no more.
 */

import {
  DOMWidgetModel,
  DOMWidgetView,
  type WidgetModel
} from '@jupyter-widgets/base';
import type { IDisposable } from '@lumino/disposable';
import type { KernelLink } from '../model/comm';
import type { RunControls } from '../model/controls';
import { PROTOCOL_VERSION, WIDGET_MODULE } from '../protocol';
import type { ITrainingModel } from '../tokens';
import { bindView } from './bindView';
import { CellView } from './cellView';

/** What is in the model is what the protocol says. */
export const WIDGET_VERSION = `${PROTOCOL_VERSION}.0.0`;

export class RunModel extends DOMWidgetModel {
  override defaults(): Record<string, unknown> {
    return {
      ...super.defaults(),
      _model_name: 'RunModel',
      _model_module: WIDGET_MODULE,
      _model_module_version: WIDGET_VERSION,
      _view_name: 'RunView',
      _view_module: WIDGET_MODULE,
      _view_module_version: WIDGET_VERSION,
      summary: '',
      snapshot: null,
      ended: false
    };
  }

  override initialize(
    ...options: Parameters<DOMWidgetModel['initialize']>
  ): void {
    super.initialize(...options);
    this.once('change:ended', () => {
      const layout = this.get('layout') as WidgetModel | null;
      // After the update in which the kernel says so.
      queueMicrotask(() => {
        forget(this);
        if (layout) {
          forget(layout);
        }
      });
    });
  }
}

/**
 * Do what the end of a model's comm does. The kernel does not send that: a page
 * that was loaded meanwhile would report that it does not know the comm.
 */
function forget(model: WidgetModel): void {
  const { jsServicesComm: comm } = (model.comm ?? {}) as {
    jsServicesComm?: IDisposable;
  };
  model.trigger('comm:close');
  void model.close(true);
  comm?.dispose();
}

/** The view of a run whose buttons act on its kernel, as far as `training` knows it. */
export function viewFor(training: ITrainingModel): typeof RunView {
  return class extends RunView {
    protected override readonly training = training;
  };
}

export class RunView extends DOMWidgetView {
  protected readonly training: ITrainingModel | null = null;

  override render(): void {
    this._unbind = bindView(
      this.model,
      summary => new CellView(this.el, summary, this._controls())
    );
  }

  private _controls(): RunControls | null {
    const { kernel } = this.model.widget_manager as { kernel?: KernelLink };
    const own = this.training?.all.find(
      ({ connection }) => connection.kernel.id === kernel?.id
    );
    return own?.controls ?? null;
  }

  override remove(): void {
    this._unbind?.();
    this._unbind = null;
    super.remove();
  }

  private _unbind: (() => void) | null = null;
}
