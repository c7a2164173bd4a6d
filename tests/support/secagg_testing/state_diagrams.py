"""State diagrams, drawn from the transition tables."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from secagg.protocol.client import machine as client
from secagg.protocol.profiles import SUPPORTED_PROFILES
from secagg.protocol.server import machine as server


class _Edge(Protocol):
    @property
    def may_enter(self) -> AbstractSet[type[Any]]: ...


def mermaid(transitions: Mapping[tuple[type[Any], type[Any]], _Edge]) -> str:
    """Return a Mermaid state diagram of one role.

    Loops (a recorded message, an ignored repeat) are not drawn: they change no state.
    """
    arrows = {
        (state.__name__, target.__name__, event.__name__)
        for (state, event), edge in transitions.items()
        for target in edge.may_enter
        if target is not state
    }
    lines = [
        f"    {source} --> {target}: {event}"
        for source, target, event in sorted(arrows)
    ]
    return "\n".join(["stateDiagram-v2", *lines])


def state_diagrams() -> str:
    """Return the Markdown page that shows both roles."""
    parts = [
        "# States of a session",
        (
            "You look up the states of a session, drawn from the transition tables "
            "in `secagg/protocol/server/machine.py` and "
            "`secagg/protocol/client/machine.py`.\n"
            "A client enters `Failed` from every state when the server violates the "
            "protocol."
        ),
    ]
    for profile in sorted(SUPPORTED_PROFILES):
        parts += [
            f"## Server, `{profile.label}`",
            f"```mermaid\n{mermaid(server.TRANSITIONS[profile])}\n```",
            f"## Client, `{profile.label}`",
            f"```mermaid\n{mermaid(client.TRANSITIONS[profile])}\n```",
        ]
    return "\n\n".join(parts) + "\n"
