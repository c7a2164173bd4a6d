"""Opens the engine that a setting names, and refuses networks that must not carry keys.

A job carries the keys of streams that remove masks. With the uploads they reveal the
sum, which the aggregator releases, and no vector of a surviving client. They are still
secrets of the aggregator: workers on a network are reached over TLS, or not at all.
"""

import asyncio
import ipaddress
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Final
from urllib.parse import urlsplit

from secagg.errors import ErrorCode
from secagg.server.engine import ray as ray_pool
from secagg.server.engine.engine import Engine, Pool, thread_engine

ENGINES: Final = (
    '"threads", "processes", "dask:tls://host:8786" (TLS as Dask is configured on this '
    'machine), "dask:tcp://127.0.0.1:8786", or "ray:auto" (with RAY_USE_TLS=1 beyond '
    "this machine)"
)


def open_engine(setting: str) -> Engine:
    """Return the engine that a setting names; its workers open with its first job.

    Args:
        setting: One of `ENGINES`.

    Raises:
        ServiceError: BAD_SETTINGS; the setting names no engine, its library is not
            installed, or keys would cross a network without TLS.
    """
    kind, _, address = setting.partition(":")
    if setting == "threads":
        return thread_engine()
    if setting == "processes":
        return Engine(setting, _processes)
    if kind == "dask" and address:
        _check_dask(address)
        open_pool = partial(_dask, address)
        return _cluster(setting, open_pool, library="distributed", extra="dask")
    if kind == "ray" and address:
        open_pool = partial(ray_pool.open_pool, address)
        return _cluster(setting, open_pool, library="ray", extra="ray")
    raise ErrorCode.BAD_SETTINGS.error(
        f"no engine {setting!r} exists", fix=f"server.engine is one of {ENGINES}."
    )


async def _processes() -> Pool:
    count = os.cpu_count() or 1
    # A fork would copy threads that hold locks, and every secret of the aggregator.
    return Pool(ProcessPoolExecutor(count, mp_context=get_context("spawn")), count)


def _cluster(
    setting: str, open_pool: Callable[[], Pool], *, library: str, extra: str
) -> Engine:
    """Return an engine of another library, which must be installed."""
    if find_spec(library) is None:
        raise ErrorCode.BAD_SETTINGS.error(
            f"server.engine is {setting!r}, and {library} is not installed",
            fix=f"Install secagg[{extra}] for the aggregator and its workers.",
        )
    return Engine(setting, partial(asyncio.to_thread, open_pool))


def _dask(address: str) -> Pool:
    from secagg.server.engine.dask import open_pool  # noqa: PLC0415 - an extra

    return open_pool(address)


def _check_dask(address: str) -> None:
    """Refuse a scheduler on another machine without TLS."""
    parts = urlsplit(address)
    try:
        is_here = ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        is_here = parts.hostname == "localhost"
    if parts.scheme != "tls" and not (parts.scheme == "tcp" and is_here):
        raise ErrorCode.BAD_SETTINGS.error(
            f"the Dask scheduler {address!r} is on another machine, and is not reached "
            "over TLS",
            fix="Give the cluster certificates (distributed.comm.tls) and set "
            "server.engine to dask:tls://host:port.",
        )
