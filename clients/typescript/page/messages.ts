/** What the page and its Worker say to each other. */

import type { ProfileName, SessionState } from '../src/index.js';

/** What the party that serves the page says about the sum; `settings.json` beside the page. */
export interface PageSettings {
  readonly authority: string;
  readonly aggregator: string;
  readonly trustDomain: string;
  /** Public key of the issuer, 64 hexadecimal digits. */
  readonly enrolmentKey: string;
  /** Name of this client, as the application knows who is logged in. */
  readonly name: string;
  readonly task: string;
  readonly profile: ProfileName;
  readonly graphs: readonly ('complete' | 'ring')[];
  /** TLS is known to end in the aggregator: needed for honest-curious-server. */
  readonly direct: boolean;
  /** Whether the sum has noise; without, vectors are integers. */
  readonly noise: boolean;
  readonly maxEpsilon: number;
  readonly maxDelta: number;
}

/** From the page. */
export type Asked =
  | { readonly kind: 'open'; readonly settings: PageSettings; readonly mark: string | null }
  /** Numbers separated by commas: as text, or a file of it. */
  | { readonly kind: 'contribute'; readonly numbers: string | Blob };

/** From the Worker. */
export type Told =
  | { readonly kind: 'mark'; readonly text: string }
  | { readonly kind: 'ready'; readonly key: string; readonly phase: SessionState | null }
  | { readonly kind: 'phase'; readonly phase: SessionState; readonly commits: number }
  /** `sum` shows its first numbers, and `whole` has all of them; null without a sum. */
  | {
      readonly kind: 'over';
      readonly sum: string | null;
      readonly whole: Blob | null;
      readonly text: string;
    }
  | { readonly kind: 'failed'; readonly error: string; readonly text: string };
