/** The sentences for what the model says in codes. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { Absence } from '../model/currentKernel';
import type { IAnswer, IFailure, Obstacle } from '../model/controls';
import type { ShownPhase } from '../model/state';
import { PROTOCOL_VERSION, type ClusterPhase } from '../protocol';
import { formatCount } from './format';

export function runPhaseText(
  phase: ShownPhase,
  trans: TranslationBundle
): string {
  switch (phase) {
    case 'starting':
      return trans.__('Starting');
    case 'running':
      return trans.__('Running');
    case 'paused':
      return trans.__('Paused');
    case 'stopping':
      return trans.__('Stopping');
    case 'finished':
      return trans.__('Finished');
    case 'stopped':
      return trans.__('Stopped');
    case 'pruned':
      return trans.__('Pruned');
    case 'failed':
      return trans.__('Failed');
    case 'lost':
      return trans.__('Kernel ended');
    case 'alone':
      return trans.__('Running without a kernel');
  }
}

export function clusterPhaseText(
  phase: ClusterPhase,
  trans: TranslationBundle
): string {
  switch (phase) {
    case 'stopped':
      return trans.__('Stopped');
    case 'starting':
      return trans.__('Starting');
    case 'running':
      return trans.__('Running');
    case 'stopping':
      return trans.__('Stopping');
  }
}

/** Why a control cannot act now, and what would make it able to. */
export function obstacleText(
  obstacle: Obstacle,
  trans: TranslationBundle
): string {
  switch (obstacle) {
    case 'waiting':
      return trans.__('Waiting for the kernel');
    case 'absent':
      return trans.__('The extension is not loaded in this kernel');
    case 'mismatch':
      return trans.__('Version mismatch between the kernel and this page');
    case 'gone':
      return trans.__('The kernel is not running');
    case 'no-run':
      return trans.__('Nothing has been run yet');
    case 'run-ended':
      return trans.__('The run has ended');
    case 'run-alone':
      return trans.__(
        'The run continues without this kernel: attach to it first'
      );
    case 'run-stopping':
      return trans.__('Stopping after the current step…');
    case 'run-pausing':
      return trans.__('Pausing after the current step…');
    case 'run-paused':
      return trans.__('The run is paused');
    case 'run-not-paused':
      return trans.__('The run is not paused');
    case 'trials':
      return trans.__('Trials can’t be paused. Stop ends all of them.');
    case 'run-active':
      return trans.__('A run is using the engines: stop it first');
    case 'kernel-busy':
      return trans.__(
        'This kernel answers between cells only. With ipykernel 7 or newer it answers at once.'
      );
    case 'cluster-changing':
    case 'sent':
      return trans.__('The engines are starting or stopping');
    case 'cluster-running':
      return trans.__('The engines are running');
    case 'cluster-stopped':
      return trans.__('No engines are running');
  }
}

/** What is said of a command about the run: what the kernel answered, and what has come of it. */
export function answerText(answer: IAnswer, trans: TranslationBundle): string {
  if (answer.done === null) {
    return answer.message;
  }
  const step = formatCount(answer.done);
  return answer.command === 'roll_back'
    ? trans.__('The run has gone back to step %1.', step)
    : trans.__('The checkpoint of step %1 is on disk.', step);
}

/** What went wrong with a command, and what to try next. */
export function failureText(
  failure: IFailure,
  trans: TranslationBundle
): string {
  switch (failure.reason) {
    case 'refused':
      return failure.message;
    case 'deaf':
      return obstacleText('kernel-busy', trans);
    case 'silent':
      return failure.busy
        ? trans.__(
            'The kernel did not answer while the cell was running. Use the notebook’s ■ (Interrupt the kernel) instead.'
          )
        : trans.__(
            'The kernel did not answer. Try again, or restart the kernel.'
          );
    case 'closed':
      return trans.__(
        'The connection to the kernel was closed before it answered. Try again when it is back.'
      );
  }
}

/** What to do where there is no kernel. */
export function absenceText(
  absence: Absence,
  trans: TranslationBundle
): string {
  switch (absence) {
    case 'no-notebook':
      return trans.__('Open a notebook with a Python kernel to see its runs.');
    case 'starting':
      return trans.__('Waiting for the kernel…');
    case 'no-kernel':
      return trans.__(
        'This notebook has no kernel. Choose one with its name at the top right of the notebook.'
      );
  }
}

export function mismatchText(
  kernelVersion: number | null,
  trans: TranslationBundle
): string {
  return trans.__(
    'Version mismatch between the kernel’s jupyter_dtrain and the JupyterLab extension (protocol %1 and %2). Install the same version in both, restart the kernel and reload this page.',
    String(kernelVersion),
    String(PROTOCOL_VERSION)
  );
}
