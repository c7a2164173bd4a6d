"""What `secagg client` tells its owner about one session."""

import pytest

from secagg.cli.client import _describe
from secagg.cli.output import Output
from secagg.client.contribution import Contribution
from secagg.distributed_dp import EXACT


def printed_lines(capsys, shortened_by):
    given = Contribution(
        session_number=1,
        inputs=3,
        values=None,
        privacy=None,
        grounds="",
        shortened_by=shortened_by,
        sessions_left=None,
        error=EXACT,
    )
    _describe(given, Output(as_json=False))
    return "".join(capsys.readouterr())


def test_a_clipped_vector_is_reported_with_its_factor(capsys):
    assert "was shortened by a factor of 12.5" in printed_lines(capsys, 12.5)


@pytest.mark.parametrize("fits", [1.0, None])
def test_a_vector_that_was_not_clipped_is_not_reported(capsys, fits):
    assert "shortened" not in printed_lines(capsys, fits)
