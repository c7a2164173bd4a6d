"""Where the heavy part of a sum is computed: threads, processes, or a cluster."""

from secagg.server.engine.engine import Engine, EngineLostError, Pool, thread_engine
from secagg.server.engine.opening import ENGINES, open_engine

__all__ = [
    "ENGINES",
    "Engine",
    "EngineLostError",
    "Pool",
    "open_engine",
    "thread_engine",
]
