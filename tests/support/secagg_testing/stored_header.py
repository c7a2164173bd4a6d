"""A session of the server's store of which only the header matters."""

from secagg.storage.change import Side
from secagg.storage.rows import StoredSession


def stored_header(header: bytes) -> StoredSession:
    """Return a running session with this header and nothing else, for decoders."""
    return StoredSession(
        key="k",
        role=Side.SERVER,
        task="t",
        peer="",
        number=1,
        header=header,
        records=(),
        sequence=0,
        chain=b"",
        round=0,
        opened=None,
        deadline=None,
        seconds_left=None,
        receipt=None,
        spent=False,
        restored=False,
        timeline="",
    )
