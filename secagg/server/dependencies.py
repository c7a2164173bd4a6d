"""What all sessions of one aggregator share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from secagg.crypto.entropy import Entropy
from secagg.protocol.enrolment import VerifiedCredentials
from secagg.runtime.clock import Clock
from secagg.runtime.metrics import Meter, SilentMeter
from secagg.runtime.workers import Workers
from secagg.server.engine.mask_removal import MaskExecutor
from secagg.server.rpc.limits import UploadSlots
from secagg.server.session.events import SessionProgress
from secagg.storage.spool import UploadSpool
from secagg.storage.store import Store


@dataclass(frozen=True, slots=True)
class ServerDependencies:
    """Holds what all sessions of one aggregator share.

    Attributes:
        keep_seconds: How long the sum of an ended session stays available at least.
        replica: Name of this process among the replicas of one store.
        verified: Credentials that were verified, over all sessions.
    """

    store: Store
    spool: UploadSpool
    workers: Workers
    masks: MaskExecutor
    clock: Clock
    entropy: Entropy
    slots: UploadSlots
    publish: Callable[[SessionProgress], None]
    keep_seconds: float
    replica: str = "alone"
    meter: Meter = field(default_factory=SilentMeter)
    verified: VerifiedCredentials = field(
        default_factory=VerifiedCredentials, repr=False
    )
