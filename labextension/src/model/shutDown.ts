/** Ends all that a kernel has to do with training: its run, then its engines. */

import type { ITraining } from './training';

export async function shutDown(training: ITraining): Promise<void> {
  const { controls, connection } = training;
  if (connection.state.running) {
    await controls.send('stop_run');
    await untilOver(connection);
  }
  await controls.send('stop_cluster');
}

/** Wait for the end of the run, which comes after a step of it. */
function untilOver(connection: ITraining['connection']): Promise<void> {
  return new Promise(resolve => {
    const look = (): void => {
      if (!connection.state.running || connection.status !== 'connected') {
        connection.changed.disconnect(look);
        resolve();
      }
    };
    connection.changed.connect(look);
    look();
  });
}
