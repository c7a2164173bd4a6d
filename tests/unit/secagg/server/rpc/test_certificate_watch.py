"""The minute of an aggregator: a defect in one look does not end the next ones."""

from types import SimpleNamespace

import pytest
from secagg_testing import manual_clock
from secagg_testing.tls_deployment import TLSDeployment

from secagg.runtime.clock import finish_before
from secagg.server.rpc.certificates import LOOK_EVERY_SECONDS, CertificateWatch


def test_a_defect_is_logged_and_the_watch_continues(tmp_path, caplog):
    identity = TLSDeployment(tmp_path).server()
    looks, shown_out = [], []

    def look():
        looks.append(1)
        if len(looks) == 2:
            raise RuntimeError("a defect")

    async def main(clock):
        watch = CertificateWatch(
            SimpleNamespace(identity=identity, refresh=lambda: identity),
            SimpleNamespace(refresh=look),
            clock,
            lambda: shown_out.append(clock.now()),
        )
        began = clock.now()
        with pytest.raises(TimeoutError):
            await finish_before(clock, began + 5.5 * LOOK_EVERY_SECONDS, watch.run())
        return [each - began for each in shown_out]

    assert manual_clock.run(main) == [
        LOOK_EVERY_SECONDS * each for each in (1, 3, 4, 5)
    ]
    assert len(looks) == 5
    assert [r.event for r in caplog.records if r.levelname == "ERROR"] == [
        "monitoring_failed"
    ]
