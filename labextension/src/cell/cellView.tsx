/** A run's name, numbers and curves, below the cell that it runs. */

import * as React from 'react';
import { createRoot, type Root } from 'react-dom/client';
import { Signal } from '@lumino/signaling';
import type { RunControls } from '../model/controls';
import { PlotOptions } from '../model/plotOptions';
import { TrainingState } from '../model/state';
import { CurvePlots } from '../panels/curvePlots';
import { Frames } from '../panels/frames';
import { CellControls } from './cellControls';
import { RunFacts } from '../panels/runFacts';
import { runPhaseText } from '../panels/texts';
import type { ISnapshot } from '../protocol';
import { plainTexts } from './plainTexts';

/** Where the themes of JupyterLab, VS Code and Colab can be seen to change. */
const THEME_MARKS = ['data-jp-theme-name', 'class', 'theme'];

export class CellView {
  /**
   * @param summary - The id of what is shown where this is not, if any.
   * @param controls - What its buttons act on; `null`: it has none.
   */
  constructor(
    private readonly _node: HTMLElement,
    summary: string | null,
    private readonly _controls: RunControls | null = null
  ) {
    _node.classList.add('jp-dtrain-cell');
    const head = document.createElement('div');
    this._head = createRoot(head);
    this._plots = new CurvePlots({
      plot: new PlotOptions(),
      trans: plainTexts,
      schedule: this._frames.schedule,
      resume: this._frames.resume
    });
    this._plots.node.className = 'jp-dtrain-cell-curves';
    if (summary !== null) {
      _node.append(hiding(summary));
    }
    _node.append(head, this._plots.node);
    this._sizes = new ResizeObserver(this._frames.schedule);
    this._sizes.observe(_node);
    _controls?.changed.connect(this._frames.hurry, this);
    this._themes = new MutationObserver(() => {
      this._plots.restyle();
    });
    for (const node of [document.documentElement, document.body]) {
      this._themes.observe(node, { attributeFilter: THEME_MARKS });
    }
  }

  show(snapshot: ISnapshot): void {
    if ((snapshot.run?.step ?? 0) < (this._state.run?.step ?? 0)) {
      this._state = new TrainingState(); // it has gone back to a checkpoint
    }
    this._state.apply(snapshot);
    this._frames.schedule();
  }

  dispose(): void {
    Signal.clearData(this);
    this._frames.dispose();
    this._sizes.disconnect();
    this._themes.disconnect();
    this._plots.dispose();
    this._head.unmount();
    this._node.replaceChildren();
  }

  private _update(): void {
    const { run, running, curves } = this._state;
    if (run === null) {
      return;
    }
    const { name } = run;
    const phase = this._controls?.stopping === true ? 'stopping' : run.phase;
    this._node.dataset.phase = phase;
    this._head.render(
      <div className="jp-dtrain-cell-head" data-phase={phase}>
        <header>
          <span className="jp-dtrain-cell-name" title={name}>
            {name}
          </span>
          <span className="jp-dtrain-phase" role="status">
            {runPhaseText(phase, plainTexts)}
          </span>
          {this._controls !== null && running && (
            <CellControls
              controls={this._controls}
              paused={phase === 'paused'}
              trans={plainTexts}
            />
          )}
        </header>
        <RunFacts
          run={run}
          elapsed={run.elapsed}
          running={running}
          trans={plainTexts}
        />
      </div>
    );
    this._plots.show(curves === null ? [] : [curves], null);
  }

  private readonly _head: Root;
  private readonly _plots: CurvePlots;
  private readonly _sizes: ResizeObserver;
  private readonly _themes: MutationObserver;
  private readonly _frames = new Frames({
    update: () => {
      this._update();
    },
    drawSome: () => this._plots.drawSome()
  });
  private _state = new TrainingState();
}

/**
 * A style sheet that hides the element with that id as long as it is on the
 * page, also one that is written anew; in JupyterLab with the output around it.
 */
function hiding(id: string): HTMLStyleElement {
  const style = document.createElement('style');
  const one = `#${CSS.escape(id)}`;
  style.textContent = `${one}, .jp-OutputArea-child:has(${one}) { display: none; }`;
  return style;
}
