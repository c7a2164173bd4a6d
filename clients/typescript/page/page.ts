/** The page itself: what people see and press. All else is in its Worker. */

import type { Asked, PageSettings, Told } from './messages.js';

function element<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

const PHASES = ['advertised', 'shared', 'delivered', 'bound', 'signed', 'answered', 'ended'];

// Nothing but this one program may become a script here (trusted types).
interface TrustedTypes {
  createPolicy(
    name: string,
    rules: { createScriptURL: (url: string) => string },
  ): { createScriptURL(url: string): string };
}
const { trustedTypes } = globalThis as { trustedTypes?: TrustedTypes };
const policy = trustedTypes?.createPolicy('secagg', {
  createScriptURL: (url) => {
    if (url !== 'worker.js') throw new TypeError('another program than the page has');
    return url;
  },
});
const worker = new Worker(policy?.createScriptURL('worker.js') ?? 'worker.js', {
  type: 'module',
});

function ask(asked: Asked): void {
  worker.postMessage(asked);
}

function say(text: string, failed = false): void {
  const status = element('status');
  status.textContent = text;
  status.classList.toggle('failed', failed);
}

let shown = '';
function fileOf(whole: Blob): string {
  URL.revokeObjectURL(shown);
  return (shown = URL.createObjectURL(whole));
}

function showPhase(phase: string): void {
  const reached = PHASES.indexOf(phase);
  document.querySelectorAll<HTMLElement>('#phases li').forEach((item) => {
    item.classList.toggle('done', PHASES.indexOf(item.dataset['phase']!) <= reached);
  });
  document.body.dataset['phase'] = phase;
}

async function open(): Promise<void> {
  const answer = await fetch('settings.json', { cache: 'no-store' });
  const settings = (await answer.json()) as PageSettings;
  element('name').textContent = settings.name;
  element('task').textContent = settings.task;
  element('profile').textContent = settings.profile;
  element('aggregator').textContent = `${settings.aggregator} at ${settings.authority}`;
  element<HTMLElement>('phases').querySelector<HTMLElement>('[data-phase=signed]')!.hidden =
    settings.profile === 'honest-curious-server';
  const key = `secagg/${settings.name}`;
  worker.onmessage = ({ data }: MessageEvent<Told>) => {
    switch (data.kind) {
      case 'mark':
        localStorage.setItem(key, data.text);
        break;
      case 'ready':
        element('key').textContent = data.key;
        element<HTMLButtonElement>('go').disabled = false;
        if (data.phase === null) say('Ready.');
        else {
          showPhase(data.phase);
          element('go').textContent = 'Continue';
          say('A session is open: press Continue. If your numbers are masked, they stay.');
        }
        document.body.dataset['ready'] = 'yes';
        break;
      case 'phase':
        showPhase(data.phase);
        document.body.dataset['commits'] = String(data.commits);
        break;
      case 'over':
        say(data.text, data.sum === null);
        element('sum').textContent = data.sum ?? '';
        if (data.whole !== null) element<HTMLAnchorElement>('whole').href = fileOf(data.whole);
        element('whole').hidden = data.whole === null;
        element('go').textContent = 'Contribute';
        element<HTMLButtonElement>('go').disabled = false;
        document.body.dataset['over'] = 'yes';
        break;
      case 'failed':
        say(data.text, true);
        element<HTMLButtonElement>('go').disabled = data.error !== 'BAD_VECTOR';
        document.body.dataset['failed'] = data.error;
        break;
    }
  };
  ask({ kind: 'open', settings, mark: localStorage.getItem(key) });
  // A browser that may delete the state when its disk is full is asked not to.
  await navigator.storage.persist();
}

element<HTMLFormElement>('form').addEventListener('submit', (event) => {
  event.preventDefault();
  element<HTMLButtonElement>('go').disabled = true;
  say('Taking part. This may take as long as the others take.');
  // Reading many numbers takes a while: the Worker does it.
  const file = element<HTMLInputElement>('file').files?.[0];
  ask({ kind: 'contribute', numbers: file ?? element<HTMLTextAreaElement>('vector').value });
});

worker.onerror = () => {
  say('The program of this page did not start.', true);
};
open().catch((error: unknown) => {
  say(error instanceof Error ? error.message : 'This page did not open.', true);
});
