"""What several tests of sums between two aggregators watch."""

import numpy as np
import pytest

from secagg.testing.two_aggregators import noise_for


@pytest.fixture
def drawn(monkeypatch):
    """Collect each noise vector that an aggregator draws."""
    kept = []
    mechanism = type(noise_for().mechanism)
    add_noise = mechanism.add_noise

    def watched(self, share, *, private_seed):
        noisy = add_noise(self, share, private_seed=private_seed)
        kept.append((noisy.astype(np.int64) - share) % self.modulus)
        return noisy

    monkeypatch.setattr(mechanism, "add_noise", watched)
    return kept
