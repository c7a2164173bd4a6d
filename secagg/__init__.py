"""Secure aggregation: a server adds up vectors and learns only the noisy sum.

These names are what most programs need; `secagg.advanced` has the others that this
package promises, and `secagg.blocking` the same without an event loop. Everything else
may change between minor releases. A name is imported when it is first used, so that
one of them does not cost all of them.
"""

from typing import Final

from dpnoise.lazy_names import lazy_names

_MODULES: Final = {
    ".client.client": ("Client",),
    ".client.contribution": ("Contribution",),
    ".client.gate": ("SessionInfo",),
    ".client.step_client": ("StepClient",),
    ".distributed_dp": ("Plan",),
    ".distributed_dp.planning": ("plan",),
    ".errors": (
        "ErrorCode",
        "InputError",
        "LocalProtocolError",
        "RemoteProtocolError",
        "SecAggError",
        "ServiceError",
        "SessionAbortedError",
    ),
    ".protocol.policy": ("ClientPolicy", "ExactSumWaiver", "PrivacyLimits"),
    ".protocol.profiles": ("Profile",),
    ".server.task.outputs": ("ReleasedSum",),
    ".server.server": ("Server",),
    ".server.step_server": ("StepServer",),
    ".server.task.setup": ("Cohort", "PreparedTask"),
    ".simulation.in_process": ("local",),
    ".transport.tls": ("TLSIdentity",),
}

_SUBMODULES: Final = (
    "advanced",
    "blocking",
    "learning",
    "two_aggregators",
)

__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES, _SUBMODULES)
