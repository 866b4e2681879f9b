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
import { PromiseDelegate, type JSONObject } from '@lumino/coreutils';

/** The part of a kernel connection that the model uses: tests fake no more. */
export type KernelLink = Pick<
  Kernel.IKernelConnection,
  | 'clientId'
  | 'connectionStatus'
  | 'connectionStatusChanged'
  | 'createComm'
  | 'disposed'
  | 'id'
  | 'info'
  | 'interrupt'
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
  /** Whether its messages are handled on a subshell: while a cell runs, too. */
  readonly onSubshell: boolean;
  send(data: JSONObject): void;
  close(): void;
}

/** Who sends a message, and which of the kernel's shells takes it. */
interface IAddress {
  channel: 'shell';
  username: string;
  session: string;
  subshellId: string | null;
}

/** The page, which tests do without. */
const page: Partial<Pick<Window, 'addEventListener' | 'removeEventListener'>> =
  globalThis;

/** The states of a kernel that takes no more messages. */
export const GONE: readonly KernelLink['status'][] = [
  'terminating',
  'restarting',
  'autorestarting',
  'dead'
];

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
  const opened = new OpenComm(kernel, comm, own);
  comm.onClose = () => {
    opened.forget();
    handlers.onClose();
  };
  if (
    own === null &&
    kernel.supportsSubshells &&
    comm.commsOverSubshells !== CommsOverSubshells.Disabled
  ) {
    await subshellStarted(comm);
  }
  opened.open();
  return opened;
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

/**
 * A comm whose messages go to its own subshell or to the one that JupyterLab
 * gave it. It sends them itself, for two reasons: `IComm` knows no other
 * subshell, and it deletes its subshell together with the message that closes
 * it, which makes the kernel complain in the output of a cell.
 */
class OpenComm implements IOpenComm {
  constructor(
    private readonly _kernel: KernelLink,
    private readonly _comm: Kernel.IComm,
    private readonly _ownSubshell: string | null
  ) {}

  get onSubshell(): boolean {
    return (this._ownSubshell ?? labSubshell(this._comm)) !== null;
  }

  open(): void {
    page.addEventListener?.('pagehide', this._onPageHide);
    const { commId: comm_id, targetName: target_name } = this._comm;
    void this._post(
      KernelMessage.createMessage<KernelMessage.ICommOpenMsg<'shell'>>({
        ...this._address(),
        msgType: 'comm_open',
        content: { comm_id, target_name, data: {} }
      })
    );
  }

  send(data: JSONObject): void {
    const { commId: comm_id } = this._comm;
    void this._post(
      KernelMessage.createMessage<KernelMessage.ICommMsgMsg<'shell'>>({
        ...this._address(),
        msgType: 'comm_msg',
        content: { comm_id, data }
      })
    );
  }

  close(): void {
    if (this._closing) {
      return;
    }
    this._setClosing();
    this._comm.onClose = ignore;
    void this._postClose(this._address()).then(() => {
      this._comm.dispose();
      this._deleteOwnSubshell();
    });
  }

  /** The kernel closed the comm: there is nothing left to close. */
  forget(): void {
    if (!this._closing) {
      this._setClosing();
      this._deleteOwnSubshell();
    }
  }

  private _setClosing(): void {
    this._closing = true;
    page.removeEventListener?.('pagehide', this._onPageHide);
  }

  /**
   * The page goes, at a reload too: the kernel would keep the comm and its
   * subshell, a thread and eight files, until it ends. Nothing can be awaited
   * any more, so the main shell is told of the end of the comm.
   */
  private readonly _onPageHide = (event: Event): void => {
    if (this._closing || (event as PageTransitionEvent).persisted) {
      return;
    }
    this._setClosing();
    const address = this._address();
    void this._postClose({ ...address, subshellId: null });
    if (address.subshellId !== null && isThere(this._kernel)) {
      deleteSubshell(this._kernel, address.subshellId);
    }
  };

  private _postClose(address: IAddress): Promise<void> {
    const { commId: comm_id } = this._comm;
    return this._post(
      KernelMessage.createMessage<KernelMessage.ICommCloseMsg<'shell'>>({
        ...address,
        msgType: 'comm_close',
        content: { comm_id, data: {} }
      })
    );
  }

  private _deleteOwnSubshell(): void {
    if (this._ownSubshell !== null && isThere(this._kernel)) {
      deleteSubshell(this._kernel, this._ownSubshell);
    }
  }

  private _address(): IAddress {
    return {
      channel: 'shell',
      username: this._kernel.username,
      session: this._kernel.clientId,
      subshellId: this._ownSubshell ?? labSubshell(this._comm)
    };
  }

  /** Send a message; resolves when the kernel is done with it, or is gone. */
  private async _post(message: KernelMessage.IShellMessage): Promise<void> {
    if (this._comm.isDisposed || !isThere(this._kernel)) {
      return;
    }
    try {
      await this._kernel.sendShellMessage(message, false, true).done;
    } catch {
      // The kernel went away meanwhile, which its status says.
    }
  }

  private _closing = false;
}

/** The subshell that JupyterLab gave a comm; the interface lacks it yet. */
function labSubshell(comm: Kernel.IComm): string | null {
  return (comm as { subshellId?: string | null }).subshellId ?? null;
}

/** Whether the kernel can take a message. */
function isThere(kernel: KernelLink): boolean {
  return !kernel.isDisposed && !GONE.includes(kernel.status);
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

/** Wait until a kernel that is busy is so no longer, for `ms` at most; return whether it is. */
export async function becomesIdle(
  kernel: KernelLink,
  ms: number
): Promise<boolean> {
  const over = new PromiseDelegate<void>();
  const onStatus = (_: unknown, status: KernelLink['status']): void => {
    if (status !== 'busy') {
      over.resolve();
    }
  };
  kernel.statusChanged.connect(onStatus);
  const isIdle = await arrived(over.promise, ms);
  kernel.statusChanged.disconnect(onStatus);
  return isIdle;
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
