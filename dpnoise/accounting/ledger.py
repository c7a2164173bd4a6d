"""The privacy ledger: what every account has spent, written before it is spent.

Numbered rules:

1. *Write ahead.* `spend` returns only when the release is durable on disk. A crash
   between that and the release loses budget, never privacy.
2. *Never refund.* There is no way to take an entry back: an aborted session may have
   shown its sum to somebody.
3. *Refuse before release.* If one account of a release cannot afford it, nothing is
   recorded for any of them.
4. *Retries are no-ops, contradictions are errors.* A release identifier names one event
   for ever.
5. *Budgets are fixed.* An account's budget is written when it is opened and refused if
   it differs later.
6. *Choices that depend on outcomes need a filter.* A budget with an `order` is a Rényi
   filter [FZ21]: it adds divergences at that one order, fixed in advance, and then
   events may be chosen from earlier outputs. Without it they must be fixed in advance.

An account is any name: "task:digits" and "client:17" both pay for one release. The file
is SQLite in write-ahead mode with full synchronisation; several processes may share it.

This module deliberately keeps no vectors and no outputs. What a client spent may itself
be private (it tells when it took part): keep a client's ledger on the client.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dpnoise.accounting.accountant import Accountant, check_delta, check_epsilon
from dpnoise.accounting.event_codec import event_from_json, event_to_json
from dpnoise.accounting.registry import make_accountant
from dpnoise.accounting.renyi_accountant import RenyiAccountant
from dpnoise.accounting.statement import PrivacyStatement
from dpnoise.errors import BudgetExceededError, ParameterError
from dpnoise.events import Adjacency, Adversary, PrivacyEvent, Repeated

__all__ = ["Budget", "PrivacyLedger"]

_MAX_NAME_LENGTH: Final = 512  # names are keys of an index; longer ones are payloads

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS account (
    name TEXT PRIMARY KEY,
    budget TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS release (
    identifier TEXT PRIMARY KEY,
    event TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS entry (
    account TEXT NOT NULL REFERENCES account (name),
    release TEXT NOT NULL REFERENCES release (identifier),
    PRIMARY KEY (account, release)
) STRICT;
"""


@dataclass(frozen=True, slots=True)
class Budget:
    """What an account may spend in total, and how that is judged.

    Args:
        epsilon: Largest total epsilon, above 0.
        delta: Failure probability at which epsilon is judged, in (0, 1).
        accountant: Name of the accountant that adds up.
        adversary: Whom the budget protects against.
        adjacency: Which two worlds must look alike.
        order: Rényi order above 1 of a filter, or None if all events are fixed in
            advance. A filter needs an accountant of Rényi curves.

    Raises:
        ParameterError: A value is out of range, or the accountant is unknown or, for a
            filter, adds up no Rényi curves.
    """

    epsilon: float
    delta: float
    accountant: str
    adversary: Adversary
    adjacency: Adjacency = Adjacency.ZERO_OUT
    order: float | None = None

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        account = self.empty_account()
        if self.order is None:
            return
        if not isinstance(account, RenyiAccountant):
            raise ParameterError(
                f"a filter of fixed order needs a Rényi accountant, {self.accountant} "
                "is none",
                parameter="accountant",
                value=self.accountant,
                nearest="mixture-rdp",
            )
        account.restrict_to_order(self.order)

    def empty_account(self) -> Accountant:
        """Return an accountant for this budget that has composed nothing."""
        account = make_accountant(
            self.accountant, adversary=self.adversary, adjacency=self.adjacency
        )
        if self.order is not None and isinstance(account, RenyiAccountant):
            account.restrict_to_order(self.order)
        return account

    def to_text(self) -> str:
        """Return canonical text, to be compared for equality."""
        order = "none" if self.order is None else float(self.order).hex()
        return " ".join(
            (
                float(self.epsilon).hex(),
                float(self.delta).hex(),
                self.accountant,
                self.adversary.value,
                self.adjacency.value,
                order,
            )
        )

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse what `to_text` returned."""
        epsilon, delta, accountant, adversary, adjacency, order = text.split(" ")
        return cls(
            epsilon=float.fromhex(epsilon),
            delta=float.fromhex(delta),
            accountant=accountant,
            adversary=Adversary(adversary),
            adjacency=Adjacency(adjacency),
            order=None if order == "none" else float.fromhex(order),
        )


class PrivacyLedger:
    """A durable record of releases and the accounts that paid for them.

    Args:
        path: File of the ledger; created if it does not exist.

    Raises:
        ParameterError: The file cannot be opened, or is no ledger.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._connection = sqlite3.connect(path, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute("PRAGMA foreign_keys=ON")
            self._connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise ParameterError(
                f"path must be a ledger in a writable directory: {error}",
                parameter="path",
                value=str(path),
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the ledger cannot be used afterwards."""
        self._connection.close()

    def open_account(self, name: str, budget: Budget) -> None:
        """Open an account, or check that it is open with the same budget.

        Args:
            name: Name of the account, 1 to 512 characters.
            budget: What it may spend in total.

        Raises:
            ParameterError: The name is empty or too long, or the account exists with
                another budget. Open another account for another budget.
        """
        _check_name("name", name)
        with self._transaction() as cursor:
            known = self._budget_text(cursor, name)
            if known is None:
                cursor.execute(
                    "INSERT INTO account VALUES (?, ?)", (name, budget.to_text())
                )
            elif known != budget.to_text():
                raise ParameterError(
                    f"account {name!r} is open with another budget, which is fixed; "
                    "open an account of another name",
                    parameter="budget",
                    value=budget.to_text(),
                    nearest=known,
                )

    def spend(
        self, accounts: Sequence[str], identifier: str, event: PrivacyEvent
    ) -> dict[str, PrivacyStatement]:
        """Charge a release to accounts; call it *before* anything is released.

        Args:
            accounts: Names of all accounts that pay, at least one, each open.
            identifier: Name of the release, 1 to 512 characters, unique for ever.
            event: What will be released, in full.

        Returns:
            What each account has spent after this release. The release is on disk.

        Raises:
            BudgetExceededError: An account cannot afford it. Nothing was recorded for
                any account; do not release.
            ParameterError: A name is invalid, an account is not open, or the
                identifier was used for a different event or different accounts.
        """
        _check_name("identifier", identifier)
        if not accounts or len(set(accounts)) != len(accounts):
            raise ParameterError(
                "accounts must name at least one account, each once",
                parameter="accounts",
                value=list(accounts),
            )
        text = event_to_json(event)
        with self._transaction() as cursor:
            is_retry = _check_contradiction(cursor, accounts, identifier, text)
            statements: dict[str, PrivacyStatement] = {}
            for name in accounts:
                budget = self._budget(cursor, name)
                account = self._account(cursor, name, budget)
                if not is_retry:
                    account.compose(event)
                spent = account.epsilon(budget.delta)
                if not is_retry and spent > budget.epsilon:
                    raise BudgetExceededError(
                        f"account {name!r} would have spent epsilon {spent:.6g} of "
                        f"{budget.epsilon:.6g} at delta {budget.delta:g} with release "
                        f"{identifier!r}; nothing was recorded, do not release",
                        account=name,
                    )
                statements[name] = account.statement(budget.delta)
            if not is_retry:
                cursor.execute("INSERT INTO release VALUES (?, ?)", (identifier, text))
                cursor.executemany(
                    "INSERT INTO entry VALUES (?, ?)",
                    [(name, identifier) for name in accounts],
                )
        return statements

    def spent(self, name: str) -> PrivacyStatement:
        """State what an account has spent so far.

        Args:
            name: Name of an open account.

        Returns:
            The statement of the budget's accountant at the budget's delta.

        Raises:
            ParameterError: The account is not open.
        """
        with self._transaction() as cursor:
            budget = self._budget(cursor, name)
            return self._account(cursor, name, budget).statement(budget.delta)

    def remaining(self, name: str) -> float:
        """Return the epsilon that an account has left, as its budget judges it.

        Args:
            name: Name of an open account.

        Returns:
            Budgeted epsilon less spent epsilon, at least 0. Epsilons of several
            releases do not add up, so this says whether anything is left, not what a
            release may cost.

        Raises:
            ParameterError: The account is not open.
        """
        with self._transaction() as cursor:
            budget = self._budget(cursor, name)
            spent = self._account(cursor, name, budget).epsilon(budget.delta)
        return max(0.0, budget.epsilon - spent)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        # The connection commits at the end of the block, and rolls back whatever ends
        # it early, a commit that fails included.
        with self._connection:
            cursor = self._connection.cursor()
            # IMMEDIATE takes the write lock first: two processes cannot both find the
            # last of a budget unspent.
            cursor.execute("BEGIN IMMEDIATE")
            yield cursor

    @staticmethod
    def _budget_text(cursor: sqlite3.Cursor, name: str) -> str | None:
        row = cursor.execute(
            "SELECT budget FROM account WHERE name = ?", (name,)
        ).fetchone()
        return None if row is None else str(row[0])

    def _budget(self, cursor: sqlite3.Cursor, name: str) -> Budget:
        text = self._budget_text(cursor, name)
        if text is None:
            raise ParameterError(
                f"account {name!r} is not open; call open_account first",
                parameter="accounts",
                value=name,
            )
        return Budget.from_text(text)

    @staticmethod
    def _account(cursor: sqlite3.Cursor, name: str, budget: Budget) -> Accountant:
        account = budget.empty_account()
        counts: Counter[str] = Counter()
        for (text,) in cursor.execute(
            "SELECT event FROM entry JOIN release ON release = identifier "
            "WHERE account = ?",
            (name,),
        ):
            counts[text] += 1
        for text, count in counts.items():
            account.compose(Repeated(event_from_json(text), count))
        return account


def _check_contradiction(
    cursor: sqlite3.Cursor, accounts: Sequence[str], identifier: str, text: str
) -> bool:
    """Return whether this release is already recorded, exactly like this."""
    row = cursor.execute(
        "SELECT event FROM release WHERE identifier = ?", (identifier,)
    ).fetchone()
    if row is None:
        return False
    paid = {
        name
        for (name,) in cursor.execute(
            "SELECT account FROM entry WHERE release = ?", (identifier,)
        )
    }
    if row[0] != text or paid != set(accounts):
        raise ParameterError(
            f"identifier {identifier!r} names another release already; every release "
            "needs an identifier of its own",
            parameter="identifier",
            value=identifier,
        )
    return True


def _check_name(parameter: str, name: str) -> None:
    if not 0 < len(name) <= _MAX_NAME_LENGTH:
        raise ParameterError(
            f"{parameter} must have 1 to {_MAX_NAME_LENGTH} characters, "
            f"got {len(name)}",
            parameter=parameter,
            value=len(name),
        )
