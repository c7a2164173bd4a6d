"""The checks that a client runs on the server's messages, in the order of PROTOCOL §5.

The first check that fails names the abort code.  For each check a test fails when the
check is removed.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Self

from secagg.crypto.key_agreement import BadPublicKeyError, check_public_key
from secagg.crypto.transcript import ClientBitmap
from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.context import roster_context
from secagg.protocol.graphs.bounds import client_demand
from secagg.protocol.graphs.neighbours import HararyRing, SharingGraph, sharing_graph
from secagg.protocol.graphs.ring_safety import graph_shortcoming, holder_bits
from secagg.protocol.membership import Member, check_adverts, check_form
from secagg.protocol.messages import (
    BUNDLE_BYTES,
    Advert,
    Delivery,
    Neighbourhood,
    Roster,
    RosterFrame,
)
from secagg.protocol.noise_terms import NoiseTerms
from secagg.protocol.parameters import Graph, ProtocolParameters
from secagg.protocol.profiles import Profile


@dataclass(frozen=True, slots=True)
class RosterView:
    """The part of a roster that a client keeps, in one form for both encodings.

    Attributes:
        size: n.
        index: Its own roster index.
        graph: Which clients share with which.
        adverts: Of itself and its neighbours, by roster index. While neighbours are
            still to be drawn, of all clients.
        ctx1: Context of the roster.
        edge_root: Covers all drawn edges. b"" if the profile draws no edges, or before
            they are drawn.
    """

    size: int
    index: int
    graph: SharingGraph
    adverts: Mapping[int, Advert]
    ctx1: bytes
    edge_root: bytes = b""

    def along(self, graph: SharingGraph, edge_root: bytes) -> Self:
        """Return the part that is needed after edges are drawn."""
        shown = (self.index, *graph.mask_peers(self.index))
        adverts = {each: self.adverts[each] for each in shown}
        return replace(self, graph=graph, adverts=adverts, edge_root=edge_root)

    def without_adverts(self) -> Self:
        """Return the part that is needed after shares are dealt: names, masking keys.

        Credentials and signatures are most of an advert, and a client keeps this value
        for hours between two rounds.
        """
        adverts = {
            index: Advert(advert.identity, b"", advert.masking_key, b"")
            for index, advert in self.adverts.items()
        }
        return replace(self, adverts=adverts)


def check_roster(
    parameters: ProtocolParameters,
    data: bytes,
    own: Advert,
    *,
    ctx0: bytes,
    member: Member | None,
) -> RosterView:
    """Check U1 as published, whole or the reader's neighbourhood (PROTOCOL §5.2).

    Args:
        parameters: The session's parameters, already within the client's policy.
        data: What the server published, as received.
        own: The advert that this client sent.
        ctx0: Context of the offer.
        member: This client's part among the enrolled, where the profile has one.

    Returns:
        What of it the client keeps.

    Raises:
        RemoteProtocolError: BAD_ENCODING, ROSTER_TOO_SMALL, ROSTER_TOO_LARGE,
            SELF_MISSING, BAD_PROOF, BAD_SIGNATURE, BAD_PUBLIC_KEY, DUPLICATE_KEY or
            POLICY_VIOLATION.
    """
    roster = Roster.decode(data)
    if isinstance(roster, Neighbourhood):
        return _check_neighbourhood(parameters, roster, data, own, ctx0)
    # R5.2-1 to R5.2-3
    adverts = dict(enumerate(roster.adverts))
    check_layers(parameters, adverts)
    check_size(parameters, len(roster))
    # Identities are strictly ascending, so at most one entry is this client's.
    index = next((i for i, advert in adverts.items() if advert == own), None)
    if index is None:
        raise _self_missing()
    check_shown_adverts(adverts, parameters.profile)
    if member is not None:
        # R5.2-6, R5.2-7
        check_adverts(
            adverts.values(),
            member.rules,
            ctx0=ctx0,
            suite=parameters.suite,
            verified=member.verified,
        )
        check_overlap(parameters, len(roster))
    graph = sharing_graph(parameters, len(roster), roster.graph_seed)
    check_ring(parameters, graph)
    check_edge_bounds(parameters, len(roster))
    ctx1 = roster_context(ctx0, RosterFrame.decode(data), parameters.suite)
    if parameters.graph is Graph.RING:
        adverts = {i: adverts[i] for i in (index, *graph.mask_peers(index))}
    return RosterView(len(roster), index, graph, adverts, ctx1)


def _check_neighbourhood(
    parameters: ProtocolParameters,
    roster: Neighbourhood,
    data: bytes,
    own: Advert,
    ctx0: bytes,
) -> RosterView:
    """Check R5.2-20 to R5.2-25, then the entries as in a whole roster."""
    index = roster.reader
    check_layers(parameters, roster.adverts)
    check_size(parameters, roster.size)
    if roster.adverts.get(index) != own:
        raise _self_missing()
    if parameters.graph is not Graph.RING:  # R5.2-25, R5.2-26
        raise ErrorCode.POLICY_VIOLATION.error(
            f"on the {parameters.graph} graph a client reads the whole roster"
        )
    graph = sharing_graph(parameters, roster.size, roster.graph_seed)
    if set(roster.adverts) != {index, *graph.mask_peers(index)}:
        raise ErrorCode.BAD_PROOF.error(
            "the neighbourhood must show exactly this client's neighbours"
        )
    # The top is computed and not compared: another view gives another ctx1, hence masks
    # that do not cancel.
    ctx1 = roster_context(ctx0, RosterFrame.decode(data), parameters.suite)
    check_shown_adverts(roster.adverts, parameters.profile)
    check_ring(parameters, graph)
    return RosterView(roster.size, index, graph, roster.adverts, ctx1)


def check_layers(parameters: ProtocolParameters, adverts: Mapping[int, Advert]) -> None:
    """Check that every client commits to as many seeds as the offer states.

    This is part of decoding: R5.2-1 and R5.2-20.

    Raises:
        RemoteProtocolError: BAD_ENCODING.
    """
    for advert in adverts.values():
        if len(advert.noise_commitments) != parameters.noise_layers:
            raise ErrorCode.BAD_ENCODING.error(
                f"the advert of {advert.identity!r} commits to "
                f"{len(advert.noise_commitments)} layers of noise, the session has "
                f"{parameters.noise_layers}",
                sender=advert.identity,
            )


def check_size(parameters: ProtocolParameters, size: int) -> None:
    """Check the size of a roster against the offer (R5.2-2, R5.2-21).

    Raises:
        RemoteProtocolError: ROSTER_TOO_SMALL or ROSTER_TOO_LARGE.
    """
    if size < parameters.min_clients:
        raise ErrorCode.ROSTER_TOO_SMALL.error(
            f"the roster has {size} clients, the session promised at least "
            f"{parameters.min_clients}"
        )
    if size > parameters.max_clients:
        raise ErrorCode.ROSTER_TOO_LARGE.error(
            f"the roster has {size} clients, the session promised at most "
            f"{parameters.max_clients}"
        )


def _self_missing() -> SecAggError:
    return ErrorCode.SELF_MISSING.error(
        "this client's advert is missing from the roster or differs from what it sent"
    )


def check_shown_adverts(adverts: Mapping[int, Advert], profile: Profile) -> None:
    """Check forms, keys and distinctness of the shown adverts of a roster.

    These are R5.2-9, R5.2-4 and R5.2-5, in this order.

    Raises:
        RemoteProtocolError: BAD_SIGNATURE or BAD_CREDENTIAL, BAD_PUBLIC_KEY,
            DUPLICATE_KEY.
    """
    for advert in adverts.values():
        check_form(advert, profile)
    for advert in adverts.values():
        for key in (advert.encryption_key, advert.masking_key):
            try:
                check_public_key(key)
            except BadPublicKeyError as error:
                raise ErrorCode.BAD_PUBLIC_KEY.error(
                    f"a public key of {advert.identity!r} is invalid: {error}",
                    sender=advert.identity,
                ) from None
    check_unique_keys(adverts.values())


def check_overlap(parameters: ProtocolParameters, clients: int) -> None:
    """Check that two quorums share an honest client (R5.2-7).

    The offer states this for its largest roster (R3.2-8). It is computed again for this
    roster, because all later checks depend on it.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION.
    """
    if 2 * parameters.quorum <= clients + parameters.colluders:
        raise ErrorCode.POLICY_VIOLATION.error(
            f"two quorums of {parameters.quorum} among {clients} clients may have "
            f"only the {parameters.colluders} colluders in common"
        )


def check_ring(parameters: ProtocolParameters, graph: SharingGraph) -> None:
    """Check the failure bounds of the ring at the roster's own size (R5.2-8).

    Raises:
        RemoteProtocolError: POLICY_VIOLATION.
    """
    if not isinstance(graph, HararyRing):
        return
    bits = holder_bits(
        graph, colluders=parameters.colluders, threshold=parameters.threshold
    )
    if bits < client_demand(parameters.graph_bits):
        raise ErrorCode.POLICY_VIOLATION.error(
            f"on this ring {parameters.colluders} colluders reach the threshold with "
            f"probability 2^-{bits:.1f}, the session promised "
            f"2^-{client_demand(parameters.graph_bits):.1f}"
        )


def check_edge_bounds(parameters: ProtocolParameters, clients: int) -> None:
    """Check the failure bounds of drawn edges at the roster's own size (R5.9-2).

    Raises:
        RemoteProtocolError: POLICY_VIOLATION.
    """
    if parameters.graph is not Graph.K_OUT:
        return
    demanded = client_demand(parameters.graph_bits)
    shortcoming = parameters.edge_shortcoming(clients, demanded)
    if shortcoming is not None:
        raise ErrorCode.POLICY_VIOLATION.error(shortcoming)


def check_unique_keys(adverts: Iterable[Advert]) -> None:
    """Check that no public key occurs twice, all kinds taken together.

    Raises:
        RemoteProtocolError: DUPLICATE_KEY.
    """
    keys = [key for advert in adverts for key in advert.public_keys]
    if len(set(keys)) != len(keys):
        raise ErrorCode.DUPLICATE_KEY.error("a public key occurs twice in the roster")


def check_delivery(
    parameters: ProtocolParameters,
    *,
    roster_size: int,
    graph: SharingGraph,
    index: int,
    delivery: Delivery,
) -> ClientBitmap:
    """Check U2 and the size of the delivery (PROTOCOL §5.3).

    Returns:
        U2 as roster indices.

    Raises:
        RemoteProtocolError: BAD_ENCODING, SELF_MISSING, U2_TOO_SMALL or
            BAD_SHARE_CIPHERTEXT.
    """
    share_holders = check_share_holders(
        parameters, roster_size=roster_size, index=index, bitmap=delivery.share_holders
    )
    senders = sum(sender in share_holders for sender in graph.senders(index))
    # PROTOCOL §11: with fewer holders left, the secrets of this client could never be
    # rebuilt.
    holders = sum(holder in share_holders for holder in graph.holders(index))
    if holders < parameters.threshold:
        raise ErrorCode.U2_TOO_SMALL.error(
            f"{holders} holders of this client's shares are left, "
            f"{parameters.threshold} are needed"
        )
    if len(delivery.bundles) != senders * BUNDLE_BYTES:  # R5.3-6
        raise ErrorCode.BAD_SHARE_CIPHERTEXT.error(
            f"expected {senders} bundles of {BUNDLE_BYTES} bytes, "
            f"got {len(delivery.bundles)} bytes"
        )
    return share_holders


def check_share_holders(
    parameters: ProtocolParameters,
    *,
    roster_size: int,
    index: int | None,
    bitmap: bytes,
) -> ClientBitmap:
    """Check U2 itself: R5.3-3, R5.3-4 and the size in R5.3-5.

    Args:
        parameters: Of the session.
        roster_size: n.
        index: The client's own; None for a caller that is not a client.
        bitmap: As received.

    Returns:
        U2 as roster indices.

    Raises:
        RemoteProtocolError: BAD_ENCODING, SELF_MISSING or U2_TOO_SMALL.
    """
    share_holders = _decode_bitmap(bitmap, roster_size, "U2")
    if index is not None and index not in share_holders:
        raise ErrorCode.SELF_MISSING.error(
            "this client is not in U2, but received shares"
        )
    needed = max(parameters.threshold, parameters.min_survivors)
    if len(share_holders) < needed:
        raise ErrorCode.U2_TOO_SMALL.error(
            f"{len(share_holders)} clients shared their keys, {needed} are needed"
        )
    return share_holders


def check_survivors(
    parameters: ProtocolParameters,
    *,
    roster_size: int,
    index: int | None,
    share_holders: AbstractSet[int],
    bitmap: bytes,
) -> ClientBitmap:
    """Check U3 before this client reveals a share (PROTOCOL §5.5).

    Returns:
        U3 as roster indices.

    Raises:
        RemoteProtocolError: BAD_ENCODING, U3_INVALID, U3_TOO_SMALL or
            TOO_MANY_DROPOUTS.
    """
    survivors = _decode_bitmap(bitmap, roster_size, "U3")  # R5.4-1
    if not survivors <= share_holders:  # R5.4-2, with the next
        raise ErrorCode.U3_INVALID.error("U3 names a client that is not in U2")
    if index is not None and index not in survivors:
        raise ErrorCode.U3_INVALID.error(
            "this client is declared dropped, but is asked to unmask"
        )
    needed = max(parameters.threshold, parameters.min_survivors)
    if len(survivors) < needed:  # R5.4-3
        raise ErrorCode.U3_TOO_SMALL.error(
            f"U3 has {len(survivors)} inputs, the session needs {needed}"
        )
    missing = roster_size - len(survivors)
    if missing > parameters.max_losses:  # R5.4-4, with the next
        raise ErrorCode.TOO_MANY_DROPOUTS.error(
            f"{missing} clients of the roster are declared dropped, at most "
            f"{parameters.max_losses} are allowed"
        )
    lost = len(share_holders) - len(survivors)
    if lost > parameters.max_dropouts:
        raise ErrorCode.TOO_MANY_DROPOUTS.error(
            f"{lost} clients are declared dropped, at most {parameters.max_dropouts} "
            "are unmasked"
        )
    return survivors


def check_noise_suffices(noise: NoiseTerms, share_holders: int, survivors: int) -> None:
    """Check that the survivors carry the noise that the offer states (R3.5-1).

    Args:
        noise: What |U2| determines.
        share_holders: |U2|.
        survivors: |U3|.

    Raises:
        RemoteProtocolError: TOO_MANY_DROPOUTS.
    """
    lost = share_holders - survivors
    if lost > noise.tolerated_losses:  # R3.5-1
        raise ErrorCode.TOO_MANY_DROPOUTS.error(
            f"{lost} of {share_holders} clients are declared dropped, the noise of the "
            f"others suffices for {noise.tolerated_losses} dropouts"
        )


def check_ring_survivors(
    parameters: ProtocolParameters, graph: SharingGraph, survivors: AbstractSet[int]
) -> None:
    """Check that unmasking U3 reveals one sum and no partial sums (R5.5-7).

    Raises:
        RemoteProtocolError: TOO_MANY_DROPOUTS.
    """
    shortcoming = graph_shortcoming(
        parameters, graph, survivors, client_demand(parameters.graph_bits)
    )
    if shortcoming is not None:
        raise ErrorCode.TOO_MANY_DROPOUTS.error(shortcoming)


def _decode_bitmap(data: bytes, roster_size: int, name: str) -> ClientBitmap:
    """Decode a set of clients of the roster."""
    try:
        return ClientBitmap(data, roster_size)
    except ValueError as error:
        raise ErrorCode.BAD_ENCODING.error(
            f"the bitmap of {name} is malformed: {error}"
        ) from None
