"""Workers of a Dask cluster.

Rule 1: the files of TLS are configured where Dask is (`distributed.comm.tls`).
        Without TLS every worker is on this machine, checked before every call, since
        workers may join.
Rule 2: a call whose worker is lost is repeated by another, at most twice; so is one
        that failed on a worker.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Final, ParamSpec, TypeVar
from urllib.parse import urlsplit

from distributed import Client
from distributed.security import Security

from secagg.errors import ErrorCode
from secagg.server.engine.engine import Pool
from secagg.server.engine.ray import is_local_address

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_RETRIES: Final = 2
_CONNECT_SECONDS: Final = 10


class _DaskExecutor(Executor):
    """Submits calls to a Dask client, which it owns."""

    def __init__(self, client: Client) -> None:
        self._client = client
        # Not pure: Dask would keep results of equal calls, which are sums.
        self._executor = client.get_executor(pure=False, retries=_RETRIES)

    def submit(
        self,
        fn: Callable[_Parameters, _Result],
        /,
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> Future[_Result]:
        """Run a call on a worker."""
        self._check_network()
        future: Future[_Result] = self._executor.submit(fn, *args, **kwargs)
        return future

    def _check_network(self) -> None:
        """Refuse a worker on a network without TLS."""
        for address in self._client.nthreads():
            parts = urlsplit(address)
            if parts.scheme != "tls" and not is_local_address(parts.hostname or ""):
                raise ErrorCode.BAD_SETTINGS.error(
                    f"the Dask worker {address} is on a network, without TLS",
                    fix="Give the cluster certificates (distributed.comm.tls) and set "
                    "server.engine to dask:tls://host:port.",
                )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as `Executor` says
        """Leave the cluster, which stays as it is."""
        try:
            self._executor.shutdown(wait=wait and not cancel_futures)
        finally:
            self._client.close(timeout=_CONNECT_SECONDS)


def open_pool(address: str) -> Pool:
    """Join a cluster.

    Args:
        address: Address of its scheduler, such as ``tls://host:8786``.

    Raises:
        OSError: No scheduler answers there.
    """
    client = Client(
        address,
        security=Security(require_encryption=address.startswith("tls://")),
        timeout=_CONNECT_SECONDS,
        set_as_default=False,
        direct_to_workers=False,
    )
    return Pool(_DaskExecutor(client), max(1, sum(client.nthreads().values())))
