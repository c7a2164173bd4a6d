"""What is refused where clients draw their neighbours: rules R5.9-2 to R5.9-10.

Rule 1: names and cases are made as in `client_refusals` and `server_refusals`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import reference as ref
from client_refusals import client_case
from forged_messages import RosterForge, flipped
from reference_edges import Edges, Lists, Place, Published
from reference_session import CHOOSE, CONSISTENCY, SHARE, UNMASK
from reference_signature import sign
from server_refusals import closing, played_server, server_case
from session_vectors import Run

ME = "f-5"


def signed_list(run: Run, name: str, drawn: tuple[int, ...]) -> bytes:
    """A list that a client may not have drawn, and that it has signed all the same."""
    view = played_server(run, CHOOSE).view
    edges, index = Edges(drawn), run.row(name)["index"]
    message = edges.signed_bytes(view.suite, view.contexts[1], index)
    signature = sign(run.secrets[name].identity_seed, message)
    return replace(edges, signature=signature).encode()


def silent_row(run: Run) -> dict[str, Any]:
    """Who is in the roster and has sent no list."""
    return next(r for r in run.record["clients"] if r["advert"] and not r["edges"])


def lists(run: Run) -> Iterator[dict[str, Any]]:
    """At the server."""
    good = run.bytes_of(ME, "edges")
    mine, count = run.row(ME)["index"], len(run.record["neighbours"])
    drawn = Edges.decode(good).drawn
    with_me = tuple(sorted({mine, *drawn[1:]}))
    cases: dict[str, tuple[bytes, int]] = {
        "R5.9-3 list cut short": (good[:-1], ref.BAD_ENCODING),
        "R5.9-3 nothing but a signature, and less": (good[-63:], ref.BAD_ENCODING),
        "R5.9-3 indices that fall": (
            good[4:8] + good[:4] + good[8:],
            ref.BAD_ENCODING,
        ),
        "R5.9-3 one index twice": (good[:4] + good[:4] + good[8:], ref.BAD_ENCODING),
        "R5.9-3 one drawn less": (signed_list(run, ME, drawn[1:]), ref.BAD_EDGES),
        "R5.9-3 an index of n": (
            signed_list(run, ME, (*drawn[:-1], count)),
            ref.BAD_EDGES,
        ),
        "R5.9-3 itself": (signed_list(run, ME, with_me), ref.BAD_EDGES),
        "R5.9-4 signature of another list": (
            signed_list(run, ME, drawn)[:-64] + run.bytes_of("b-9", "edges")[-64:],
            ref.BAD_SIGNATURE,
        ),
        "R5.9-4 one bit of the signature": (
            flipped(good, len(good) - 64),
            ref.BAD_SIGNATURE,
        ),
    }
    for name, (data, code) in cases.items():
        yield server_case(run, ME, CHOOSE, (name, code), data)
    other = signed_list(run, ME, tuple(sorted({*drawn[1:], _undrawn(run, drawn)})))
    named = ("R5-1 a second, different message", ref.EQUIVOCATION)
    yield server_case(run, ME, CHOOSE, named, other, after=(ME,))
    # Who sent no list is in the roster, and in nothing that follows.
    silent = silent_row(run)["identity"]
    named = ("R5.9-11 bundles of who sent no list", ref.SESSION_OVER)
    bundles = run.bytes_of(ME, "bundles")
    yield server_case(run, silent, SHARE, named, bundles)
    late = ("R5-1 a list after its round", ref.DEADLINE)
    yield server_case(run, silent, SHARE, late, good, of=CHOOSE)


def _undrawn(run: Run, drawn: tuple[int, ...]) -> int:
    mine, count = run.row(ME)["index"], len(run.record["neighbours"])
    return next(i for i in range(count) if i not in drawn and i != mine)


def published(run: Run) -> Iterator[dict[str, Any]]:
    """At a client that was drawn, and has drawn."""
    good = run.bytes_of(ME, "published")
    shown = Published.decode(good)
    (first, _), *later = shown.drawers
    lost = next(i for i, p in enumerate(shown.places) if p is None)
    kept = next(i for i, p in enumerate(shown.places) if p is not None)
    place = shown.places[kept]
    if place is None:
        raise AssertionError("all whom it drew are lost")

    def case(rule: str, name: str, code: int, data: bytes) -> dict[str, Any]:
        return client_case(run, ME, SHARE, (f"{rule} {name}", code), data)

    def placed(where: int, other: Place | None) -> bytes:
        places = [*shown.places[:where], other, *shown.places[where + 1 :]]
        return replace(shown, places=places).encode()

    swapped = [shown.drawers[1], shown.drawers[0], *shown.drawers[2:]]
    for name, data in {
        "published edges cut short": good[:-1],
        "published edges with one byte more": good + b"\0",
        "who drew it in another order": replace(shown, drawers=swapped).encode(),
    }.items():
        yield case("R5.9-5", name, ref.BAD_ENCODING, data)
    own_leaf = {
        "another edge root": replace(shown, root=bytes(32)).encode(),
        "one who drew it left out": replace(shown, drawers=later).encode(),
        "an empty proof of its own leaf": replace(shown, own_proof=[]).encode(),
    }
    for name, data in own_leaf.items():
        yield case("R5.9-6", name, ref.SELF_MISSING, data)
    for name, data in {
        "an edge that is hidden from who drew it": placed(kept, None),
        "a place beyond the list": placed(kept, replace(place, place=place.count)),
        "another place": placed(
            kept, replace(place, place=(place.place + 1) % place.count)
        ),
        "a list of another length": placed(kept, replace(place, count=place.count + 1)),
        "another list": placed(kept, replace(place, drawn_hash=bytes(32))),
        "a list of who has sent none": placed(lost, place),
        "no places": replace(shown, places=[]).encode(),
        "one place more": replace(shown, places=[*shown.places, None]).encode(),
        "no proof of their leaves": replace(shown, leaves_proof=[]).encode(),
        "one hash too many": replace(
            shown, leaves_proof=[*shown.leaves_proof, bytes(32)]
        ).encode(),
    }.items():
        yield case("R5.9-10", name, ref.BAD_PROOF, data)
    yield from covered_lies(run, first)


def covered_lies(run: Run, first: int) -> Iterator[dict[str, Any]]:
    """Lies about who drew a client, under a root that covers them."""
    mine, count = run.row(ME)["index"], len(run.record["neighbours"])
    name = run.roster().adverts[first].identity
    drawers = [
        who for who, _ in Published.decode(run.bytes_of(ME, "published")).drawers
    ]
    good = Edges.decode(run.bytes_of(name, "edges"))
    others = [i for i in range(count) if i not in {mine, first}]
    foreign = replace(good, signature=flipped(good.signature, 63))
    silent = tuple(others[: len(good.drawn)])
    beyond = (*good.drawn[:-1], 2**32 - 1)
    most = run.offer.parameters.in_cap
    lies: dict[str, tuple[int, dict[int, Edges], list[int]]] = {
        "R5.9-7 drawn by more than in_cap": (
            ref.BAD_EDGES,
            {silent_row(run)["index"]: good},
            sorted([*others, first])[: most + 1],
        ),
        "R5.9-7 drawn by itself": (ref.BAD_EDGES, {}, sorted([*drawers, mine])),
        "R5.9-7 drawn by an unknown client": (
            ref.BAD_EDGES,
            {count: good},
            [*drawers, count],
        ),
        "R5.9-8 a list that another client has signed": (
            ref.BAD_SIGNATURE,
            {first: foreign},
            drawers,
        ),
        "R5.9-9 a list that does not name it": (
            ref.BAD_EDGES,
            {first: Edges.decode(signed_list(run, name, silent))},
            drawers,
        ),
        "R5.9-9 a list that names no client": (
            ref.BAD_EDGES,
            {first: Edges.decode(signed_list(run, name, beyond))},
            drawers,
        ),
    }
    for named, (code, lists_of, claimed) in lies.items():
        server = played_server(run, SHARE)
        told = {i: Edges.decode(edges) for i, edges in server.edges.items()} | lists_of
        view = server.view
        shown = Lists(
            view.suite,
            view.contexts[1],
            told,
            count=count,
            claims={mine: claimed},
        )
        data = shown.published(mine).encode()
        yield client_case(run, ME, SHARE, (named, code), data)


def rosters(run: Run) -> Iterator[dict[str, Any]]:
    seeded = RosterForge(run).reordered(bytes(32))
    names = [advert.identity for advert in seeded.adverts.values()]
    for named, data in (
        (
            ("R5.2-10 a graph seed where clients draw", ref.POLICY_VIOLATION),
            seeded.encode(),
        ),
        (
            ("R5.2-26 a neighbourhood where clients draw", ref.POLICY_VIOLATION),
            replace(seeded, reader=names.index(ME)).encode(),
        ),
    ):
        yield client_case(run, ME, CHOOSE, named, data)
    smaller = smaller_roster(run)
    named = ("R5.9-2 a size at which the odds are too large", ref.POLICY_VIOLATION)
    yield client_case(run, ME, CHOOSE, named, smaller)


def smaller_roster(run: Run) -> bytes:
    """One client less: the offer holds for fewer and for more, not for as many."""
    forge = RosterForge(run)
    return forge.roster([one for one in forge.adverts if one.identity != "b-9"])


def unseen_losses(run: Run) -> Iterator[dict[str, Any]]:
    """As many losses as the noise bears, and one more may be missing unseen."""
    count = len(run.record["neighbours"])
    few = ref.bitmap(set(range(3, count)), count)
    named = ("R5.9-13 no noise is left for who is missing", ref.TOO_MANY_DROPOUTS)
    name = run.roster().adverts[count - 1].identity
    yield client_case(run, name, CONSISTENCY, named, few)


def unsigned_members(run: Run) -> Iterator[dict[str, Any]]:
    """R5.3-13, as in profile 2: one member of U3 has signed its bundles only."""
    good, row = run.announced("quorum"), 4 + 32 + 64
    signed, none = good[: -row - 4], ref.u32(0)
    for name, code, data in (
        ("no proofs", ref.U3_INVALID, signed + none),
        ("one bit of the digest", ref.BAD_SIGNATURE, flipped(good, len(good) - 80)),
        ("one bit of the signature", ref.BAD_SIGNATURE, flipped(good, len(good) - 40)),
    ):
        named = (f"R5.3-13 {name}, where neighbours are drawn", code)
        yield client_case(run, ME, UNMASK, named, data)


def sparse_client_refusals(run: Run, noised: Run) -> Iterator[dict[str, Any]]:
    yield from rosters(run)
    yield from published(run)
    yield from unseen_losses(noised)
    yield from unsigned_members(run)


def sparse_server_refusals(run: Run) -> Iterator[dict[str, Any]]:
    yield from lists(run)


def sparse_closings(run: Run) -> Iterator[dict[str, Any]]:
    named = ("R5.9-11 too few have drawn", ref.U2_TOO_SMALL)
    yield closing(run, CHOOSE, named, 4)
    named = ("R5.4-7 too few signed of all clients", ref.NO_QUORUM)
    yield closing(run, CONSISTENCY, named, 1)
