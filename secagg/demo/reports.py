"""How the processes of the demo talk to the one that started them: JSON lines.

Rule 1: one object per line on standard output, with a key ``event``; nothing else is
        written there.
Rule 2: only public facts: names, rounds, counts.
"""

import json
import sys

__all__ = ["say"]


def say(event: str, **facts: object) -> None:
    """Tell the parent process one thing, at once."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()
