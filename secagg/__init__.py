"""Secure aggregation: a server adds up vectors and learns only the noisy sum.

These names are what most programs need; `secagg.advanced` has the others that this
package promises, and `secagg.blocking` the same without an event loop. Everything else
may change between minor releases. A name is imported when it is first used, so that
one of them does not cost all of them.
"""

from typing import TYPE_CHECKING

from dpnoise.lazy_names import lazy_names

if TYPE_CHECKING:
    from secagg import (
        advanced as advanced,
        blocking as blocking,
        learning as learning,
        two_aggregators as two_aggregators,
    )
    from secagg.client.client import Client as Client
    from secagg.client.contribution import Contribution as Contribution
    from secagg.client.gate import SessionInfo as SessionInfo
    from secagg.client.step_client import StepClient as StepClient
    from secagg.distributed_dp import Plan as Plan
    from secagg.distributed_dp.planning import plan as plan
    from secagg.errors import (
        ErrorCode as ErrorCode,
        InputError as InputError,
        LocalProtocolError as LocalProtocolError,
        RemoteProtocolError as RemoteProtocolError,
        SecAggError as SecAggError,
        ServiceError as ServiceError,
        SessionAbortedError as SessionAbortedError,
    )
    from secagg.protocol.policy import (
        ClientPolicy as ClientPolicy,
        ExactSumWaiver as ExactSumWaiver,
        PrivacyLimits as PrivacyLimits,
    )
    from secagg.protocol.profiles import Profile as Profile
    from secagg.server.task.outputs import ReleasedSum as ReleasedSum
    from secagg.server.server import Server as Server
    from secagg.server.step_server import StepServer as StepServer
    from secagg.server.task.setup import Cohort as Cohort, PreparedTask as PreparedTask
    from secagg.simulation.in_process import local as local
    from secagg.transport.tls import TLSIdentity as TLSIdentity
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__)
