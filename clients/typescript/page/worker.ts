/** Entry of the page's Worker. */

import { serve, type WorkerScope } from './client-worker.js';

serve(globalThis as unknown as WorkerScope);
