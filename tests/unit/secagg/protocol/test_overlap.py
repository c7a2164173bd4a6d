"""R5.2-7: two quorums have an honest client in common, whatever n is."""

from dataclasses import replace

import pytest

from secagg.conformance import read_vectors
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.client.checks import check_overlap
from secagg.protocol.descriptor import SessionDescriptor

SIGNED = next(one for one in read_vectors("sessions")["sessions"] if one["quorum"])
PARAMETERS = SessionDescriptor.decode(bytes.fromhex(SIGNED["offer"])).parameters


@pytest.mark.parametrize("colluders", range(4))
def test_quorums_that_overlap_only_in_colluders_are_rejected(colluders):
    parameters = replace(PARAMETERS, colluders=colluders)
    for clients in range(1, 20):
        shared = 2 * parameters.quorum - clients
        if shared > colluders:
            check_overlap(parameters, clients)
            continue
        with pytest.raises(RemoteProtocolError) as refused:
            check_overlap(parameters, clients)
        assert refused.value.code == ErrorCode.POLICY_VIOLATION
