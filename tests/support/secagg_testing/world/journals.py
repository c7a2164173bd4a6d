"""The stored or erased content of one session on a server's disk."""

from secagg.protocol.messages import Message, Round


class Journal:
    """One session, as the disk has it.

    Args:
        task: Name of its task.
        number: Its number.

    Attributes:
        task: As above.
        number: As above.
        taken: Messages by kind and sender.
        closed: Rounds that are closed.
        deadline: Of the round that is open, in seconds since the world began.
        since: When the round was opened.
        has_sum: Its sum was stored.
        is_over: It has ended, or was forgotten by a restored disk.
    """

    def __init__(self, task: str, number: int) -> None:
        self.task = task
        self.number = number
        self.taken: dict[tuple[type[Message], str], bytes] = {}
        self.closed: set[Round] = set()
        self.deadline = 0.0
        self.since = 0.0
        self.has_sum = False
        self.is_over = False

    def senders(self, which: Round) -> set[str]:
        """Return the clients that have answered in a round."""
        return {sender for of, sender in self.taken if of.ROUND is which}
