/** Debian's Chromium without a window, driven over its debugging pipe. */

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import type { Readable, Writable } from 'node:stream';

/** Where Chromium is; empty where it is not. */
export const CHROMIUM =
  process.env['CHROMIUM'] ?? (existsSync('/usr/bin/chromium') ? '/usr/bin/chromium' : '');

interface Answer {
  readonly id?: number;
  readonly result?: unknown;
  readonly error?: { readonly message: string };
}

/** One browser process with a profile of its own, which outlives it. */
export class Browser {
  readonly #child: ChildProcess;
  readonly #closed: Promise<unknown>;
  readonly #waiting = new Map<number, (answer: Answer) => void>();
  #last = 0;

  private constructor(child: ChildProcess) {
    this.#child = child;
    this.#closed = once(child, 'close');
    // A browser that is killed leaves its pipes broken.
    for (const pipe of [child.stdio[3]!, child.stdio[4]!]) pipe.on('error', () => undefined);
    let rest = '';
    (child.stdio[4] as Readable).on('data', (data: Buffer) => {
      const parts = (rest + data.toString()).split('\0');
      rest = parts.pop()!;
      for (const part of parts) {
        const answer = JSON.parse(part) as Answer;
        if (answer.id !== undefined) this.#waiting.get(answer.id)?.(answer);
      }
    });
  }

  /**
   * Starts it.
   *
   * @param profile Directory of its profile.
   * @param spki Key of the one certificate that it takes without an authority: SHA-256, base64.
   */
  static start(profile: string, spki: string): Browser {
    const flags = [
      '--headless',
      '--no-sandbox', // the pages are ours, and containers have no user namespaces
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
      '--hide-scrollbars',
      '--remote-debugging-pipe',
      `--user-data-dir=${profile}`,
      `--ignore-certificate-errors-spki-list=${spki}`,
    ];
    // A group of its own, so that a kill ends its renderers as well.
    const stdio = ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] as const;
    return new Browser(spawn(CHROMIUM, flags, { stdio: [...stdio], detached: true }));
  }

  /** Asks one command of the debugging protocol; of one page, if a session is named. */
  async command<T>(method: string, params: object = {}, sessionId?: string): Promise<T> {
    const id = ++this.#last;
    const answered = new Promise<Answer>((resolve) => this.#waiting.set(id, resolve));
    const text = JSON.stringify({ id, method, params, ...(sessionId && { sessionId }) });
    (this.#child.stdio[3] as Writable).write(`${text}\0`);
    const gone = this.#closed.then((): Answer => ({ error: { message: 'the browser is gone' } }));
    const answer = await Promise.race([answered, gone]);
    this.#waiting.delete(id);
    if (answer.error !== undefined) throw new Error(`${method}: ${answer.error.message}`);
    return answer.result as T;
  }

  /** Opens a page in a tab of its own. */
  async open(url: string): Promise<Page> {
    const { targetId } = await this.command<{ targetId: string }>('Target.createTarget', { url });
    const { sessionId } = await this.command<{ sessionId: string }>('Target.attachToTarget', {
      targetId,
      flatten: true,
    });
    return new Page(this, sessionId);
  }

  /** Ends all of its processes at once, as a loss of power does. */
  async kill(): Promise<void> {
    process.kill(-this.#child.pid!, 'SIGKILL');
    await this.#closed;
  }
}

/** One tab. */
export class Page {
  readonly #browser: Browser;
  readonly #session: string;

  constructor(browser: Browser, session: string) {
    this.#browser = browser;
    this.#session = session;
  }

  /** Evaluates an expression in the page, and waits for what it promises. */
  async evaluate<T>(expression: string): Promise<T> {
    const { result, exceptionDetails } = await this.#browser.command<{
      result: { value: T };
      exceptionDetails?: { exception?: { description?: string }; text: string };
    }>('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true }, this.#session);
    if (exceptionDetails !== undefined) {
      throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    }
    return result.value;
  }

  /** Waits until an expression is true; the page looks whenever its document changes. */
  async until(expression: string): Promise<unknown> {
    for (;;) {
      try {
        return await this.evaluate(`new Promise((resolve) => {
          const look = () => { try { if (${expression}) resolve(true); } catch {} };
          const changes = { subtree: true, childList: true, attributes: true };
          new MutationObserver(look).observe(document, changes);
          look();
        })`);
      } catch (error) {
        // The tab went on to its page meanwhile: look there.
        if (!/context was destroyed|navigated/.test((error as Error).message)) throw error;
      }
    }
  }

  /** Chooses a file in an input, as a person does. */
  async choose(selector: string, path: string): Promise<void> {
    const { root } = await this.#browser.command<{ root: { nodeId: number } }>(
      'DOM.getDocument',
      {},
      this.#session,
    );
    const { nodeId } = await this.#browser.command<{ nodeId: number }>(
      'DOM.querySelector',
      { nodeId: root.nodeId, selector },
      this.#session,
    );
    await this.#browser.command('DOM.setFileInputFiles', { files: [path], nodeId }, this.#session);
  }

  /** CPU seconds that its main thread has spent in tasks since the first call. */
  async cpuSeconds(): Promise<number> {
    const domain = { timeDomain: 'threadTicks' };
    await this.#browser.command('Performance.enable', domain, this.#session);
    const { metrics } = await this.#browser.command<{
      metrics: readonly { name: string; value: number }[];
    }>('Performance.getMetrics', {}, this.#session);
    return metrics.find(({ name }) => name === 'TaskDuration')!.value;
  }

  /** Deletes the databases of an origin, as a browser does whose disk is full. */
  async evict(origin: string): Promise<void> {
    const params = { origin, storageTypes: 'indexeddb' };
    await this.#browser.command('Storage.clearDataForOrigin', params, this.#session);
  }

  /** A picture of the page, PNG. */
  async picture(width: number, height: number, dark: boolean): Promise<Buffer> {
    const features = [{ name: 'prefers-color-scheme', value: dark ? 'dark' : 'light' }];
    await this.#browser.command('Emulation.setEmulatedMedia', { features }, this.#session);
    await this.#browser.command(
      'Emulation.setDeviceMetricsOverride',
      { width, height, deviceScaleFactor: 1, mobile: false },
      this.#session,
    );
    const { data } = await this.#browser.command<{ data: string }>(
      'Page.captureScreenshot',
      { format: 'png' },
      this.#session,
    );
    return Buffer.from(data, 'base64');
  }
}
