/** A run's name, numbers and curves, below the cell that it runs. */

import { render, type ComponentChild } from 'preact';
import * as React from 'react';
import { PlotOptions } from '../model/plotOptions';
import { TrainingState } from '../model/state';
import { CurvePlots } from '../panels/curvePlots';
import { RunFacts } from '../panels/runFacts';
import { runPhaseText } from '../panels/texts';
import type { ISnapshot } from '../protocol';
import { plainTexts } from './plainTexts';

/** Where the themes of JupyterLab, VS Code and Colab can be seen to change. */
const THEME_MARKS = ['data-jp-theme-name', 'class', 'theme'];

export class CellView {
  constructor(private readonly _node: HTMLElement) {
    _node.classList.add('jp-dtrain-cell');
    this._head = document.createElement('div');
    this._plots = new CurvePlots({
      plot: new PlotOptions(),
      trans: plainTexts,
      schedule: this._schedule
    });
    this._plots.node.className = 'jp-dtrain-cell-curves';
    _node.append(this._head, this._plots.node);
    this._sizes = new ResizeObserver(this._schedule);
    this._sizes.observe(_node);
    this._themes = new MutationObserver(() => {
      this._plots.restyle();
    });
    for (const node of [document.documentElement, document.body]) {
      this._themes.observe(node, { attributeFilter: THEME_MARKS });
    }
  }

  show(snapshot: ISnapshot): void {
    this._state.apply(snapshot);
    this._schedule();
  }

  dispose(): void {
    cancelAnimationFrame(this._frame);
    this._sizes.disconnect();
    this._themes.disconnect();
    this._plots.dispose();
    render(null, this._head);
    this._node.replaceChildren();
  }

  private _update(): void {
    const { run, running, curves } = this._state;
    if (run === null) {
      return;
    }
    const { phase, name } = run;
    this._node.dataset.phase = phase;
    const head = (
      <div className="jp-dtrain-cell-head" data-phase={phase}>
        <header>
          <span className="jp-dtrain-cell-name" title={name}>
            {name}
          </span>
          <span className="jp-dtrain-phase" role="status">
            {runPhaseText(phase, plainTexts)}
          </span>
        </header>
        <RunFacts
          run={run}
          elapsed={run.elapsed}
          running={running}
          trans={plainTexts}
        />
      </div>
    );
    // Preact in the place of React, which the bundle would be three times as
    // large with. It has React's elements, and types of its own.
    render(head as ComponentChild, this._head);
    this._plots.show(curves === null ? [] : [curves], null);
  }

  /** Draw what has changed in the next frame. */
  private readonly _schedule = (): void => {
    this._isStale = true;
    this._requestFrame();
  };

  private _requestFrame(): void {
    if (this._frame === 0) {
      this._frame = requestAnimationFrame(() => {
        this._frame = 0;
        this._drawFrame();
      });
    }
  }

  private _drawFrame(): void {
    if (this._isStale) {
      this._isStale = false;
      this._update();
    }
    if (this._plots.drawSome()) {
      this._requestFrame();
    }
  }

  private readonly _head: HTMLElement;
  private readonly _plots: CurvePlots;
  private readonly _sizes: ResizeObserver;
  private readonly _themes: MutationObserver;
  private readonly _state = new TrainingState();
  private _frame = 0;
  private _isStale = false;
}
