"""The open clients of this process, one for each state directory.

Opening a state and reading its sessions costs as much as the answer itself, so a node
that stays in its process keeps its client open between messages.  Another process that
has the next message waits for the directory, and is refused after a while.
"""

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from secagg.client.step_client import StepClient
from secagg.errors import InternalError, ServiceError
from secagg.integrations.flower.terms import NodeTerms


class OpenClients:
    """Clients that stay open until their terms change, they fail, or all is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Path, tuple[NodeTerms, str, StepClient]] = {}
        self._process = os.getpid()

    @contextmanager
    def client(self, terms: NodeTerms, identity: str) -> Iterator[StepClient]:
        """Yield the open client of a node.

        Args:
            terms: Of the node, as its file is now.
            identity: Its name.

        Raises:
            ServiceError: STORAGE_FAILED or RESTORED_STATE, as `StepClient`.
        """
        client = self._open_client(terms, identity)
        try:
            yield client
        except (ServiceError, InternalError):
            with self._lock:  # what is on the disk only a new object reads
                if self._entries.get(terms.state_dir) == (terms, identity, client):
                    del self._entries[terms.state_dir]
            client.close()
            raise

    def close(self) -> None:
        """Close all clients; the next message opens its own again."""
        with self._lock:
            self._discard_inherited()
            entries, self._entries = tuple(self._entries.values()), {}
        for *_, client in entries:
            client.close()

    def _open_client(self, terms: NodeTerms, identity: str) -> StepClient:
        """Return the open client of a state directory."""
        with self._lock:
            self._discard_inherited()
            if terms.state_dir in self._entries:
                *of, client = self._entries[terms.state_dir]
                if of == [terms, identity]:
                    return client
                del self._entries[terms.state_dir]
                client.close()
            client = terms.client(identity).__enter__()
            self._entries[terms.state_dir] = (terms, identity, client)
            return client

    def _discard_inherited(self) -> None:
        """A fork must not use, nor close, what its parent has open."""
        if self._process != os.getpid():
            self._entries, self._process = {}, os.getpid()


OPEN_CLIENTS = OpenClients()
atexit.register(OPEN_CLIENTS.close)
