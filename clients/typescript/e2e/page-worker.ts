/** The page's Worker for tests: after its first commit it stands still, to be killed there. */

import { serve, type WorkerScope } from '../page/client-worker.js';

serve(globalThis as unknown as WorkerScope, () => new Promise(() => undefined));
