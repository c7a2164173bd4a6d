"""Workers of a Ray cluster that runs already.

Rule 1: TLS is required (``RAY_USE_TLS=1`` and its files), unless every node is this
        machine. It is checked before every call, since nodes may join.
Rule 2: a call whose worker is lost is repeated by another, at most twice.
"""

import os
import socket
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import ModuleType
from typing import Final, ParamSpec, TypeVar

from secagg.errors import ErrorCode
from secagg.server.engine.engine import Pool

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_RETRIES: Final = 2


class _RayExecutor(Executor):
    """Submits calls as Ray tasks."""

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray

    def submit(
        self,
        fn: Callable[_Parameters, _Result],
        /,
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> Future[_Result]:
        """Run a call on a worker."""
        _check_network(self._ray)
        remote = self._ray.remote(fn).options(max_retries=_RETRIES, num_cpus=1)
        future: Future[_Result] = remote.remote(*args, **kwargs).future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - as `Executor` says
        """Leave the cluster, which stays as it is."""
        self._ray.shutdown()


def open_pool(address: str) -> Pool:
    """Join a cluster.

    Args:
        address: An address for `ray.init`: ``auto`` for a cluster of this machine.

    Raises:
        ServiceError: BAD_SETTINGS; keys would cross a network without TLS.
        ConnectionError: No such cluster runs.
    """
    import ray  # noqa: PLC0415 - an extra, and a large one

    ray.init(
        address=address,
        configure_logging=False,
        log_to_driver=False,
        ignore_reinit_error=True,
    )
    _check_network(ray)
    return Pool(_RayExecutor(ray), max(1, int(ray.cluster_resources().get("CPU", 1))))


def _check_network(ray: ModuleType) -> None:
    """Refuse a node on a network while Ray uses no TLS."""
    if os.environ.get("RAY_USE_TLS") == "1":
        return
    for node in ray.nodes():
        if node["Alive"] and not is_local_address(node["NodeManagerAddress"]):
            raise ErrorCode.BAD_SETTINGS.error(
                f"the Ray node {node['NodeManagerAddress']} is on a network, and Ray "
                "does not use TLS",
                fix="Start the cluster and the aggregator with RAY_USE_TLS=1 and "
                "its certificates.",
            )


def is_local_address(address: str) -> bool:
    """Return whether an address is one of this machine: only such can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
