"""Every decoder of the wire: a value or the documented error, whatever the bytes."""

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError
from secagg.protocol.messages import KINDS
from secagg.transport import status
from secagg.wire.calls import CALLS

DECODERS = {
    **{call.name: call.request.decode for call in CALLS.values()},
    **{f"answer to {call.name}": call.decode for call in CALLS.values()},
    **{kind.__name__: kind.decode for kind in KINDS.values()},
}
# An offer is read to its last field, and says which release or rule it breaks.
OF_OFFERS = {ErrorCode.BAD_CONFIG, ErrorCode.BAD_VERSION}

VARINT = st.integers(0, (1 << 64) - 1).map(
    lambda n: b"".join(
        bytes([(n >> s & 127) | (128 if n >> (s + 7) else 0)])
        for s in range(0, max(1, -(-n.bit_length() // 7)) * 7, 7)
    )
)


@st.composite
def protobuf_like(draw, depth=3):
    """Bytes with the shape of protobuf, so that the parser lets many of them in."""
    out = b""
    for _ in range(draw(st.integers(0, 5))):
        number = draw(st.integers(1, 7))
        if draw(st.booleans()):
            out += bytes([number << 3]) + draw(VARINT)
        else:
            inner = draw(
                st.one_of(
                    st.binary(max_size=40),
                    st.just(bytes(32)),
                    *([protobuf_like(depth - 1)] if depth else []),
                )
            )
            out += bytes([number << 3 | 2]) + bytes([min(len(inner), 127)])
            out += inner[:127]
    return out


@pytest.mark.parametrize("_part", range(4))
@settings(max_examples=250, deadline=None)
@given(data=st.one_of(st.binary(max_size=200), protobuf_like()))
def test_a_decoder_returns_a_value_or_the_documented_error(_part, data):
    for what, decode in DECODERS.items():
        documented = {ErrorCode.BAD_ENCODING}
        if what == "answer to GetOffer":
            documented |= OF_OFFERS
        refusal = None
        try:
            decode(data)
        except RemoteProtocolError as error:
            refusal = error
        except Exception as error:
            error.add_note(f"in {what}")
            raise
        assert refusal is None or refusal.code in documented, what
        assert str(refusal).isprintable(), what


@pytest.mark.parametrize("_part", range(3))
@settings(max_examples=100, deadline=None)
@given(
    code=st.sampled_from(list(grpc.StatusCode)),
    text=st.text(),
    detail=st.one_of(st.binary(max_size=200), protobuf_like()),
)
def test_every_failed_call_raises_a_package_error(_part, code, text, detail):
    error = status.error_of(code, text, ((status.DETAIL_KEY, detail),))
    assert isinstance(error, SecAggError)
    assert str(error).isprintable()
    assert error.next_step.isprintable()
