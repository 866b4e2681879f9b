/**
 * Opens a comm whose handlers run on a kernel subshell, so that the kernel
 * answers it while a cell runs.
 *
 * JupyterLab gives each comm target a subshell by itself, once it knows that
 * the kernel has them. It asks on the main shell, though: a page that is
 * loaded while a cell runs would wait for the end of the cell. Such a page
 * asks for a subshell on the control channel instead, which a busy kernel
 * answers, and addresses its messages to it.
 */

import {
  CommsOverSubshells,
  KernelMessage,
  type Kernel
} from '@jupyterlab/services';
import type { JSONObject } from '@lumino/coreutils';

/** The part of a kernel connection that the model uses: tests fake no more. */
export type KernelLink = Pick<
  Kernel.IKernelConnection,
  | 'clientId'
  | 'connectionStatus'
  | 'connectionStatusChanged'
  | 'createComm'
  | 'disposed'
  | 'info'
  | 'iopubMessage'
  | 'isDisposed'
  | 'sendControlMessage'
  | 'sendShellMessage'
  | 'spec'
  | 'status'
  | 'statusChanged'
  | 'supportsSubshells'
  | 'username'
>;

export interface ICommHandlers {
  /** A message from the kernel. */
  onMessage: (data: JSONObject) => void;
  /** The kernel closed the comm, or never knew its target. */
  onClose: () => void;
}

/** An open comm. */
export interface IOpenComm {
  send(data: JSONObject): void;
  close(): void;
}

/** How long the kernel may take to say what it is before it counts as busy. */
const INFO_MS = 2000;
/** How long to wait for a subshell before doing without. */
const SUBSHELL_MS = 5000;

/** Open a comm to `target`; rejects when the kernel connection is gone. */
export async function openComm(
  kernel: KernelLink,
  target: string,
  handlers: ICommHandlers
): Promise<IOpenComm> {
  const known = await arrived(kernel.info, INFO_MS);
  const own = known ? null : await createSubshell(kernel);
  if (!known && own === null) {
    await kernel.info;
  }
  const comm = kernel.createComm(target);
  comm.onMsg = message => {
    handlers.onMessage(message.content.data);
  };
  comm.onClose = () => {
    handlers.onClose();
  };
  if (own !== null) {
    return openOnSubshell(kernel, comm, own);
  }
  if (
    kernel.supportsSubshells &&
    comm.commsOverSubshells !== CommsOverSubshells.Disabled
  ) {
    await subshellStarted(comm);
  }
  comm.open();
  return {
    send: data => {
      comm.send(data);
    },
    close: () => {
      comm.onClose = ignore;
      closeComm(kernel, comm);
    }
  };
}

/**
 * Wait for the subshell that JupyterLab starts for `comm`: one that is opened
 * earlier belongs to the main shell. The interface does not tell of it yet.
 */
async function subshellStarted(comm: Kernel.IComm): Promise<void> {
  const { subshellStarted: started } = comm as { subshellStarted?: unknown };
  if (started instanceof Promise) {
    await arrived(started, SUBSHELL_MS);
  }
}

/** Open `comm` with messages that name the subshell, which the comm does not. */
function openOnSubshell(
  kernel: KernelLink,
  comm: Kernel.IComm,
  subshellId: string
): IOpenComm {
  const address = {
    channel: 'shell' as const,
    username: kernel.username,
    session: kernel.clientId,
    subshellId
  };
  const { commId: comm_id, targetName: target_name } = comm;
  kernel.sendShellMessage(
    KernelMessage.createMessage<KernelMessage.ICommOpenMsg<'shell'>>({
      ...address,
      msgType: 'comm_open',
      content: { comm_id, target_name, data: {} }
    }),
    false,
    true
  );
  return {
    send: data => {
      kernel.sendShellMessage(
        KernelMessage.createMessage<KernelMessage.ICommMsgMsg<'shell'>>({
          ...address,
          msgType: 'comm_msg',
          content: { comm_id, data }
        }),
        false,
        true
      );
    },
    close: () => {
      comm.onClose = ignore;
      closeComm(kernel, comm);
      if (!kernel.isDisposed) {
        deleteSubshell(kernel, subshellId);
      }
    }
  };
}

function closeComm(kernel: KernelLink, comm: Kernel.IComm): void {
  if (!kernel.isDisposed && !comm.isDisposed) {
    comm.close();
  }
}

/** Ask for a subshell on the control channel; `null`: the kernel has none. */
async function createSubshell(kernel: KernelLink): Promise<string | null> {
  const future = kernel.sendControlMessage(
    KernelMessage.createMessage<KernelMessage.ICreateSubshellRequestMsg>({
      msgType: 'create_subshell_request',
      channel: 'control',
      username: kernel.username,
      session: kernel.clientId,
      content: {}
    }),
    true,
    true
  );
  const reply = future.done.then(message => {
    const { content } = message as KernelMessage.ICreateSubshellReplyMsg;
    return content.subshell_id;
  });
  return (await arrived(reply, SUBSHELL_MS)) ? await reply : null;
}

function deleteSubshell(kernel: KernelLink, subshell_id: string): void {
  kernel.sendControlMessage(
    KernelMessage.createMessage<KernelMessage.IDeleteSubshellRequestMsg>({
      msgType: 'delete_subshell_request',
      channel: 'control',
      username: kernel.username,
      session: kernel.clientId,
      content: { subshell_id }
    }),
    true,
    true
  );
}

/** Whether `promise` is fulfilled within `ms`; a rejection counts as no. */
async function arrived(
  promise: Promise<unknown>,
  ms: number
): Promise<boolean> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<boolean>(resolve => {
    timer = setTimeout(() => {
      resolve(false);
    }, ms);
  });
  const inTime = promise.then(
    () => true,
    () => false
  );
  try {
    return await Promise.race([inTime, late]);
  } finally {
    clearTimeout(timer);
  }
}

function ignore(): void {
  // Nothing is left to tell.
}
