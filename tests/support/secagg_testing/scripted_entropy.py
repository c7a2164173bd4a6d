"""Scripted entropy: a test sets each draw, and checks the amount drawn."""

from secagg.crypto.entropy import Entropy


class ScriptedEntropy:
    """Hands out the given tokens in order, and nothing else.

    Args:
        tokens: What each draw returns; a draw of another size is an error, and so is
            one draw too many.
    """

    def __init__(self, *tokens: bytes) -> None:
        self._tokens = list(tokens)

    @property
    def unused_tokens(self) -> int:
        """How many tokens were not drawn."""
        return len(self._tokens)

    def token(self, size: int, /) -> bytes:
        """Return the next token.

        Raises:
            LookupError: The script is at its end, or says another size.
        """
        if not self._tokens or len(self._tokens[0]) != size:
            raise LookupError(f"the script has no token of {size} bytes here")
        return self._tokens.pop(0)


class RecordingEntropy:
    """Forwards draws and records their sizes.

    Attributes:
        sizes: Size of every draw so far.
    """

    def __init__(self, inner: Entropy) -> None:
        self._inner = inner
        self.sizes: list[int] = []

    def token(self, size: int, /) -> bytes:
        """Draw from the inner source."""
        self.sizes.append(size)
        return self._inner.token(size)
