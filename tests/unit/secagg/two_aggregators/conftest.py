"""What several tests of sums between two aggregators watch."""

import pytest
from secagg_testing.two_aggregators import watched_noise


@pytest.fixture
def drawn():
    """Collect each noise vector that an aggregator draws."""
    with watched_noise() as kept:
        yield kept
