"""Aggregators of one store serve under one name."""

import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.storage.leases import refuse_other_names
from secagg.storage.rows import Replica, ReplicaRow


def row(name, aggregator, silent=1.0):
    return ReplicaRow(Replica(name, "10.0.0.1:7400", "1.0", aggregator), 0.0, silent)


OWN = Replica("own", "", "1.0", "agg")


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row("other", "agg")],
        [row("other", "elsewhere", silent=16.0)],  # it has ended
        [row("own", "before")],
    ],
)
def test_one_aggregator_name_is_accepted(rows):
    refuse_other_names(OWN, rows)


def test_different_aggregator_names_are_rejected_with_both_names():
    with pytest.raises(ServiceError, match=r"'agg'.*7400.*'other'") as caught:
        refuse_other_names(OWN, [row("one", "agg"), row("two", "other")])
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert "keys may differ" in caught.value.next_step
