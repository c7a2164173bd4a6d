"""Differential privacy of secure sums: the only package that imports `dpnoise`.

A *noisy task* is a task whose parameters hold a noise block. The block states the
mechanism with all its numbers, and the budget that it claims to meet. It enters the
configuration hash, so all clients add noise for the same claim or their masks do not
cancel.

Rule 1: a task fixes the variance that counts. What one client adds follows from the
        session's own U2. The honest others carry that variance after every tolerated
        loss, whatever colluders and the user itself add.
Rule 2: only `NoisyTask.encode` makes a `NoisyVector`, and a session with a noise block
        accepts nothing else. Zeros in the place of an unusable vector go the same way.
        A task's local randomiser comes first: no vector leaves a client without it.
Rule 3: a client recomputes epsilon from the mechanism; it never trusts the claim.
Rule 4: no amplification by sampling: the server knows which clients take part, and
        readers see it in the noise that every participant adds. Where a task selects
        vectors, all clients add their noise. The selection of a client is as secret as
        its vector: it is in no message, log, error or receipt.
Rule 5: noise, rounding and selection derive from one secret seed per session and U2, so
        a restarted client sends the same bytes. The rotation derives from the public
        session id.
Rule 6: a client that would draw other noise for the same U2 has another ctx2
        (PROTOCOL §4). Builds that disagree make masks that do not cancel, never a sum
        with another noise.

Nothing in here does input or output.
"""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
