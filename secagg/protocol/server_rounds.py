"""What the server does in each round: the handlers of `server.TRANSITIONS`.

A handler checks first and writes last.  It raises `RemoteProtocolError` for a message
that it refuses, and then the state is as before.
"""

from collections.abc import Set as AbstractSet
from typing import Any, Final

import numpy as np

from secagg.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from secagg.messages import Advert, Roster, SumReleased
from secagg.primitives.key_agreement import BadPublicKeyError, check_public_key
from secagg.primitives.share_encoding import SHARE_SIZE, check_shares
from secagg.primitives.transcript import encode_set
from secagg.protocol import context, reconstruction
from secagg.protocol.events import (
    AbortRequested,
    BundlesSent,
    InputUploaded,
    KeysAdvertised,
    RoundClosed,
    SharesRevealed,
    SumComputed,
)
from secagg.protocol.neighbors import SharingGraph, sharing_graph
from secagg.protocol.outputs import (
    AnnounceRound,
    ComputeSum,
    DropClient,
    FinishSession,
    ServerOutput,
    Step,
)
from secagg.protocol.rounds import BUNDLE_BYTES, DropReason, Round
from secagg.protocol.server_states import (
    Aborted,
    AdvertiseKeys,
    Completed,
    MaskedInputCollection,
    Rostered,
    ServerState,
    ServerStep,
    ShareKeys,
    Summing,
    Unmasking,
)

__all__ = [
    "abort_requested",
    "close_advertise_keys",
    "close_masked_input",
    "close_share_keys",
    "close_unmasking",
    "complete",
    "record_bundles",
    "record_keys",
    "record_shares",
    "record_upload",
]

_SEED_BYTES: Final = 32


# --- round 0 ------------------------------------------------------------------------


def record_keys(state: AdvertiseKeys, event: KeysAdvertised) -> ServerStep:
    """Record one advert (PROTOCOL §5.1)."""
    sender = event.sender
    if state.invited is not None and sender not in state.invited:
        raise RemoteProtocolError(
            f"{sender!r} is not invited to this session",
            code=ErrorCode.NOT_INVITED,
            sender=sender,
        )
    advert = Advert.decode(event.advert)
    if advert.identity != sender:
        raise RemoteProtocolError(
            f"{sender!r} sent an advert of another identity",
            code=ErrorCode.UNAUTHENTICATED,
            sender=sender,
        )
    known = state.adverts.get(sender)
    if known is not None:
        _require_same(known == advert, sender, "advert")
        return Step(state)
    if len(state.adverts) >= state.descriptor.parameters.max_clients:
        raise RemoteProtocolError(
            f"the session is full with {len(state.adverts)} clients",
            code=ErrorCode.ROSTER_TOO_LARGE,
            sender=sender,
            next_step="Wait for the next session of the task.",
        )
    if advert.signature:
        raise RemoteProtocolError(
            "this profile has no signatures, the advert carries one",
            code=ErrorCode.BAD_SIGNATURE,
            sender=sender,
        )
    keys = (advert.encryption_key, advert.masking_key)
    for key in keys:
        try:
            check_public_key(key)
        except BadPublicKeyError as error:
            raise RemoteProtocolError(
                f"a public key of {sender!r} is unusable: {error}",
                code=ErrorCode.BAD_PUBLIC_KEY,
                sender=sender,
            ) from None
    if keys[0] == keys[1] or not state.keys.isdisjoint(keys):
        raise RemoteProtocolError(
            f"a public key of {sender!r} occurs twice in the session",
            code=ErrorCode.DUPLICATE_KEY,
            sender=sender,
        )
    state.adverts[sender] = advert  # last: every check has passed
    state.keys.update(keys)
    return Step(state)


def close_advertise_keys(state: AdvertiseKeys, event: RoundClosed) -> ServerStep:
    """Fix U1 and publish the roster (PROTOCOL §5.1)."""
    # PROTOCOL §5.1: continue only if |U1| meets the promise made to clients.
    parameters = state.descriptor.parameters
    if len(state.adverts) < parameters.min_clients:
        return _too_few(
            len(state.adverts),
            parameters.min_clients,
            "advertised keys",
            ErrorCode.ROSTER_TOO_SMALL,
        )
    if not parameters.is_complete_graph and len(event.graph_seed) != _SEED_BYTES:
        raise LocalProtocolError("closing round 0 on a ring takes a 32-byte seed")
    roster = Roster(
        tuple(state.adverts[name] for name in sorted(state.adverts, key=str.encode)),
        b"" if parameters.is_complete_graph else event.graph_seed,
    )
    graph = sharing_graph(parameters, roster)
    ctx0 = context.session_context(state.descriptor)
    return Step(
        ShareKeys(
            descriptor=state.descriptor,
            packed_bytes=state.packed_bytes,
            roster=roster,
            index_of={advert.identity: i for i, advert in enumerate(roster.adverts)},
            graph=graph,
            ctx1=context.roster_context(ctx0, roster.encode(), parameters.suite),
            bundles={},
        ),
        (AnnounceRound(Round.SHARE_KEYS),),
    )


# --- round 1 ------------------------------------------------------------------------


def record_bundles(state: ShareKeys, event: BundlesSent) -> ServerStep:
    """Record one client's sealed bundles (PROTOCOL §5.2)."""
    index = _member(state, event.sender, range(len(state.roster)))
    expected = len(state.graph.neighbors(index)) * BUNDLE_BYTES
    if len(event.bundles) != expected:
        raise RemoteProtocolError(
            f"{event.sender!r} sent {len(event.bundles)} bytes of bundles, "
            f"expected {expected}",
            code=ErrorCode.BAD_ENCODING,
            sender=event.sender,
        )
    known = state.bundles.get(index)
    if known is not None:
        _require_same(known == event.bundles, event.sender, "set of share bundles")
        return Step(state)
    state.bundles[index] = event.bundles
    return Step(state)


def close_share_keys(state: ShareKeys, _: RoundClosed) -> ServerStep:
    """Fix U2 and deliver the bundles (PROTOCOL §5.2)."""
    parameters = state.descriptor.parameters
    sharers = _core_of(state.graph, frozenset(state.bundles), parameters.threshold)
    dropped = _drops(state, set(range(len(state.roster))) - sharers, _NO_SHARES)
    needed = max(parameters.threshold, parameters.min_survivors)
    if len(sharers) < needed:
        return _too_few(
            len(sharers), needed, "shared keys", ErrorCode.U2_TOO_SMALL, dropped
        )
    bitmap = encode_set(sharers, len(state.roster))
    return Step(
        MaskedInputCollection(
            **_rostered(state),
            sharers=sharers,
            ctx2=context.mask_context(state.ctx1, bitmap, parameters.suite),
            bundles={index: state.bundles[index] for index in sharers},
            uploads={},
        ),
        (*dropped, AnnounceRound(Round.MASKED_INPUT_COLLECTION)),
    )


def _core_of(
    graph: SharingGraph, members: frozenset[int], threshold: int
) -> frozenset[int]:
    """Peel off clients with fewer than `threshold` holders left (PROTOCOL §11).

    On the complete graph this is all or nothing; on a ring, a client whose holders
    are gone could neither be unmasked nor cut out later.
    """
    core = members
    while True:
        kept = frozenset(
            index for index in core if graph.count_holders(index, core) >= threshold
        )
        if kept == core:
            return core
        core = kept


# --- round 2 ------------------------------------------------------------------------


def record_upload(state: MaskedInputCollection, event: InputUploaded) -> ServerStep:
    """Record that one masked input is in (PROTOCOL §5.3)."""
    index = _member(state, event.sender, state.sharers)
    if event.size != state.packed_bytes:
        raise RemoteProtocolError(
            f"{event.sender!r} uploaded {event.size} bytes, a packed vector has "
            f"{state.packed_bytes}",
            code=ErrorCode.BAD_VECTOR,
            sender=event.sender,
        )
    known = state.uploads.get(index)
    if known is not None:
        _require_same(known == event.digest, event.sender, "masked input")
        return Step(state)
    state.uploads[index] = event.digest
    return Step(state)


def close_masked_input(state: MaskedInputCollection, _: RoundClosed) -> ServerStep:
    """Fix U3 and ask it to unmask (PROTOCOL §5.3)."""
    parameters = state.descriptor.parameters
    survivors = frozenset(state.uploads)
    lost = state.sharers - survivors
    dropped = _drops(state, lost, DropReason.NO_INPUT)
    needed = max(parameters.threshold, parameters.min_survivors)
    if len(survivors) < needed:
        return _too_few(
            len(survivors),
            needed,
            "uploaded their input",
            ErrorCode.U3_TOO_SMALL,
            dropped,
        )
    if len(lost) > parameters.max_dropouts:
        return _abort(
            ErrorCode.TOO_MANY_DROPOUTS,
            f"{len(lost)} clients were lost before their input was in, at most "
            f"{parameters.max_dropouts} are tolerated",
            dropped,
        )
    orphan = next(
        (
            index
            for index in sorted(state.sharers)
            if state.graph.count_holders(index, survivors) < parameters.threshold
        ),
        None,
    )
    if orphan is not None:
        return _abort(
            ErrorCode.TOO_FEW_ANSWERS,
            f"too few neighbours of {state.roster.adverts[orphan].identity!r} are "
            f"left to rebuild its secrets, {parameters.threshold} are needed",
            dropped,
        )
    if not state.graph.is_connected(survivors):
        # The masks between the parts would be known, and each part's sum with them.
        return _abort(
            ErrorCode.TOO_MANY_DROPOUTS,
            "the lost clients cut the ring into parts, whose sums would be seen",
            dropped,
        )
    # PROTOCOL §5.5: U3 is fixed here, and journalled before any client hears of it.
    return Step(
        Unmasking(
            **_rostered(state),
            sharers=state.sharers,
            survivors=survivors,
            ctx2=state.ctx2,
            uploads=dict(state.uploads),
            shares={},
        ),
        (*dropped, AnnounceRound(Round.UNMASKING)),
    )


# --- round 4 ------------------------------------------------------------------------


def record_shares(state: Unmasking, event: SharesRevealed) -> ServerStep:
    """Record one client's revealed shares (PROTOCOL §5.5)."""
    index = _member(state, event.sender, state.survivors)
    expected = len(_dealers(state, index)) * SHARE_SIZE
    if len(event.shares) != expected:
        raise RemoteProtocolError(
            f"{event.sender!r} revealed {len(event.shares)} bytes of shares, "
            f"expected {expected}",
            code=ErrorCode.BAD_ENCODING,
            sender=event.sender,
        )
    encoded = np.frombuffer(event.shares, np.uint8).reshape(-1, SHARE_SIZE)
    if not check_shares(encoded).all():
        raise RemoteProtocolError(
            f"{event.sender!r} revealed a share that is not canonical",
            code=ErrorCode.BAD_ENCODING,
            sender=event.sender,
        )
    known = state.shares.get(index)
    if known is not None:
        _require_same(known == event.shares, event.sender, "set of shares")
        return Step(state)
    state.shares[index] = event.shares
    return Step(state)


def close_unmasking(state: Unmasking, _: RoundClosed) -> ServerStep:
    """Fix U5, rebuild the secrets and order the sum (PROTOCOL §5.5)."""
    parameters = state.descriptor.parameters
    silent = _drops(state, state.survivors - set(state.shares), DropReason.NO_ANSWER)
    answered = frozenset(state.shares)
    for dealer in sorted(state.sharers):
        answers = state.graph.count_holders(dealer, answered)
        if answers < parameters.threshold:
            return _too_few(
                answers,
                parameters.threshold,
                f"answered for {state.roster.adverts[dealer].identity!r}",
                ErrorCode.TOO_FEW_ANSWERS,
                silent,
            )
    try:
        rebuilt = reconstruction.rebuild(
            parameters,
            session_id=state.descriptor.session_id,
            roster=state.roster,
            graph=state.graph,
            sharers=state.sharers,
            survivors=state.survivors,
            answers=state.shares,
        )
    except RemoteProtocolError as error:
        return _abort(error.code, str(error), silent)
    liars = _drops(state, rebuilt.liars, DropReason.BAD_SHARES)
    job = ComputeSum(
        session_id=state.descriptor.session_id,
        mask_context=state.ctx2,
        modulus=parameters.modulus,
        dimension=parameters.dimension,
        suite=parameters.suite,
        uploads=tuple(sorted(state.uploads.items())),
        survivor_seeds=rebuilt.survivor_seeds,
        dropped_keys=rebuilt.dropped_keys,
    )
    return Step(
        Summing(**_rostered(state), survivors=state.survivors, job=job),
        (*silent, *liars, job),
    )


def _dealers(state: Unmasking, holder: int) -> tuple[int, ...]:
    return tuple(d for d in state.graph.dealers(holder) if d in state.sharers)


# --- the end ------------------------------------------------------------------------


def complete(state: Summing, event: SumComputed) -> ServerStep:
    """Release the sum."""
    released = SumReleased(event.sum_hash, event.size, len(state.survivors))
    return Step(
        Completed(**_rostered(state), survivors=state.survivors, released=released),
        (
            FinishSession(None, f"sum of {len(state.survivors)} inputs released"),
            AnnounceRound(Round.FINISHED),
        ),
    )


def abort_requested(_: ServerState, event: AbortRequested) -> ServerStep:
    """End the session on request of the operator or the machinery."""
    return _abort(event.code, event.reason)


def _too_few(
    alive: int,
    needed: int,
    did: str,
    code: ErrorCode,
    drops: tuple[ServerOutput, ...] = (),
) -> ServerStep:
    return _abort(code, f"{alive} clients {did}, {needed} are needed", drops)


def _abort(
    code: ErrorCode, reason: str, drops: tuple[ServerOutput, ...] = ()
) -> ServerStep:
    return Step(
        Aborted(code, reason),
        (*drops, FinishSession(code, reason), AnnounceRound(Round.FINISHED)),
    )


# --- shared by the rounds -----------------------------------------------------------

_NO_SHARES: Final = DropReason.NO_SHARES


def _require_same(same: bool, sender: str, what: str) -> None:  # noqa: FBT001 - the check
    # A retry is a no-op; a contradiction is a violation.
    if not same:
        raise RemoteProtocolError(
            f"{sender!r} sent a second, different {what}",
            code=ErrorCode.EQUIVOCATION,
            sender=sender,
        )


def _member(state: Rostered, sender: str, allowed: AbstractSet[int] | range) -> int:
    index = state.index_of.get(sender)
    if index is None or index not in allowed:
        raise RemoteProtocolError(
            f"{sender!r} is not part of this round",
            code=ErrorCode.SESSION_OVER,
            sender=sender,
            next_step="Wait for the next session of the task.",
        )
    return index


def _rostered(state: Rostered) -> dict[str, Any]:
    return {
        "descriptor": state.descriptor,
        "packed_bytes": state.packed_bytes,
        "roster": state.roster,
        "index_of": state.index_of,
        "graph": state.graph,
        "ctx1": state.ctx1,
    }


def _drops(
    state: Rostered, indices: AbstractSet[int], reason: DropReason
) -> tuple[ServerOutput, ...]:
    return tuple(
        DropClient(state.roster.adverts[index].identity, reason)
        for index in sorted(indices)
    )
