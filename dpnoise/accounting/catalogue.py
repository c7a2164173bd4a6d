"""The catalogue of accountants: one row for each, and the choices that rows decide.

* A name always means the same accountant; nothing here falls back to another one.
* Planning, calibration and totals over tasks read the columns of a row, never a name.
* Every valid bound is an upper bound on the same loss, so the least of them holds. Only
  proven or certified accountants whose theorem covers every part of an event are asked
  by default; all others have to be named.
* The choice is made once, where a task is planned. What is written down names one
  accountant, which is the only one that a client evaluates.
* Modules are imported when an accountant is first made, so that a closed form does not
  pay for a table.

It holds no theorem.
"""

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from dpnoise.accounting.accountant import HYPOTHETICAL_PREFIX, Accountant
from dpnoise.errors import ParameterError, TheoremNotApplicableError, UnknownEventError
from dpnoise.events import (
    Adjacency,
    Adversary,
    BinomialEvent,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    GaussianEvent,
    NoiseEvent,
    PrivacyEvent,
    SkellamEvent,
    SkellamMixtureClippedEvent,
    SkellamMixtureEvent,
    flatten,
)
from dpnoise.own_parts import load_class, register_own

MAX_ACCOUNTING_COST: Final = 2e9
"""What a client spends on a description before it says no, table cells: two seconds."""

_SMALLEST_DELTA: Final = 1e-12
_FEW_SHIFTS: Final = 128.0
"""Above this sum of squared norms a Gaussian loses less than a tenth of a percent."""

_Kinds = frozenset[type[NoiseEvent]]
_ANY: Final = frozenset(Adjacency)
_ZERO_OUT: Final = frozenset({Adjacency.ZERO_OUT})
_GAUSSIANS: Final[_Kinds] = frozenset({GaussianEvent, DiscreteGaussianEvent})
_INTEGERS: Final[_Kinds] = frozenset({SkellamEvent, *_GAUSSIANS})
_MIXTURES: Final[_Kinds] = frozenset({SkellamMixtureEvent, SkellamMixtureClippedEvent})
_CLIPPED: Final[_Kinds] = frozenset({SkellamMixtureClippedEvent})
_SKELLAM: Final[_Kinds] = frozenset({SkellamEvent})
_SUMS: Final[_Kinds] = frozenset({DistributedDiscreteGaussianEvent})
_BINOMIALS: Final[_Kinds] = frozenset({BinomialEvent})
_LATTICES: Final[_Kinds] = frozenset(
    {SkellamEvent, DiscreteGaussianEvent, BinomialEvent}
)


class Form(StrEnum):
    """How an accountant computes: what its price and its waste depend on."""

    CLOSED = "closed"
    """A formula: its price is nothing, and what it wastes falls with more noise."""

    ORDERS = "orders"
    """A sum over Rényi orders: what it wastes stays, however fine the grid."""

    INTEGRAL = "integral"
    """Tables along contours, for each answer."""

    CURVE = "curve"
    """Tables for a whole curve, for each noise: up to half a second."""

    PRODUCT = "product"
    """The loss distributions of formulas, multiplied: its price is next to nothing."""

    ATOMS = "atoms"
    """The exact atoms of few entries: may need less noise than a Gaussian."""

    @property
    def is_tabulated(self) -> bool:
        """Whether its tables grow with the noise and begin at a least variance."""
        return self in {Form.INTEGRAL, Form.CURVE}


class Releases(StrEnum):
    """How many releases an accountant is asked about by default."""

    ONE = "one"
    MANY = "many"
    ANY = "any"

    def holds(self, count: int) -> bool:
        """Return whether so many releases are asked about."""
        return self is Releases.ANY or (self is Releases.ONE) == (count == 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountantEntry:
    """One row: what is known of an accountant without asking it.

    Attributes:
        name: As tasks, plans and statements spell it.
        place: Module below `dpnoise.accounting`, and the class in it.
        form: How it computes.
        covers: Kinds of release that it has a theorem for, alone or together.
        made_for: Those of them for whose sake it is asked by default; the others it
            composes along.
        adjacencies: As the class states them.
        releases: How many releases it is asked about by default.
        is_default: Whether it is asked where no accountant is named; proven or
            certified ones only.
        is_fallback: Whether it is asked after those by default, where they have no
            theorem or waste noise.
        entries: Largest sum of squared norms of integer vectors that it is asked about
            by default, grid steps².
        plan_limit: What an answer may cost while grids are compared, as a part of
            `MAX_ACCOUNTING_COST`. A plan asks for some twenty answers.
        named_limit: The same where it is named, so that it is asked alone, and no
            selection precedes the releases.
        final_limit: The same on the grid that was chosen, where others waste noise.
    """

    name: str
    place: str
    form: Form
    covers: _Kinds
    made_for: _Kinds
    adjacencies: frozenset[Adjacency] = _ANY
    releases: Releases = Releases.ANY
    is_default: bool = False
    is_fallback: bool = False
    entries: float = math.inf
    plan_limit: float = 1.0
    named_limit: float = 1.0
    final_limit: float = 1.0

    @property
    def may_need_less_than_gaussian(self) -> bool:
        """Whether it may need less noise than a Gaussian would."""
        return self.form is Form.ATOMS

    def is_asked(
        self, kinds: _Kinds, releases: int, shifts: float, adjacency: Adjacency
    ) -> bool:
        """Return whether it is asked about an event where no accountant is named."""
        return (
            (self.is_default or self.is_fallback)
            and kinds <= self.covers
            and not kinds.isdisjoint(self.made_for)
            and adjacency in self.adjacencies
            and self.releases.holds(releases)
            and shifts <= self.entries
        )


# In the order in which they are asked: of two that need as much noise, the cheaper one
# comes first. Limits of cost were set by benchmarks/search_plans.py: no plan and no
# client should take longer than two seconds. An integral takes some ten contours, of
# which a statement takes two to four. A curve is built again for each of some six
# noises, and a sum over orders tries a dozen.
CATALOGUE: Final[tuple[AccountantEntry, ...]] = (
    AccountantEntry(
        name="skellam-gdp",
        place="tradeoff.skellam_gdp:SkellamGDPAccountant",
        covers=_INTEGERS,
        made_for=_INTEGERS,
        form=Form.CLOSED,
        is_default=True,
    ),
    AccountantEntry(
        name="log-concave-gdp",
        place="tradeoff.skellam_gdp:LogConcaveGDPAccountant",
        covers=_SUMS | _BINOMIALS | _GAUSSIANS,
        made_for=_SUMS | _BINOMIALS,
        form=Form.CLOSED,
        is_default=True,
    ),
    AccountantEntry(
        name="lattice-pld",
        place="loss.lattice_pld:LatticePLDAccountant",
        covers=_LATTICES,
        made_for=_LATTICES,
        form=Form.ATOMS,
        is_default=True,
        entries=_FEW_SHIFTS,
    ),
    AccountantEntry(
        name="skellam-rdp",
        place="renyi.skellam_rdp:SkellamRDPAccountant",
        covers=_INTEGERS,
        made_for=_SKELLAM,
        form=Form.ORDERS,
        is_fallback=True,
    ),
    AccountantEntry(
        name="mixture-gdp",
        place="tradeoff.mixture_gdp:MixtureGDPAccountant",
        covers=_MIXTURES | _INTEGERS,
        made_for=_MIXTURES,
        adjacencies=_ZERO_OUT,
        form=Form.CLOSED,
        is_default=True,
    ),
    AccountantEntry(
        name="mixture-simple",
        place="tradeoff.mixture_simple:MixtureSimpleAccountant",
        covers=frozenset({SkellamMixtureEvent}),
        made_for=frozenset({SkellamMixtureEvent}),
        adjacencies=_ZERO_OUT,
        form=Form.CLOSED,
    ),
    AccountantEntry(
        name="smm-paper",
        place="published.smm:SMMPaperAccountant",
        covers=_CLIPPED | _GAUSSIANS,
        made_for=_CLIPPED,
        adjacencies=_ZERO_OUT,
        form=Form.ORDERS,
        is_default=True,
    ),
    AccountantEntry(
        name="mixture-rdp",
        place="renyi.mixture_rdp:MixtureRDPAccountant",
        covers=_MIXTURES | _INTEGERS,
        made_for=_MIXTURES,
        adjacencies=_ZERO_OUT,
        form=Form.ORDERS,
        is_fallback=True,
        plan_limit=0.12,
        named_limit=0.75,
    ),
    AccountantEntry(
        name="mixture-contour",
        place="contour.mixture_contour:MixtureContourAccountant",
        covers=_MIXTURES | _SKELLAM,
        made_for=_MIXTURES,
        adjacencies=_ZERO_OUT,
        form=Form.INTEGRAL,
        releases=Releases.ONE,
        is_default=True,
        plan_limit=0.3,
        named_limit=0.3,
        final_limit=0.3,
    ),
    AccountantEntry(
        name="mixture-pld",
        place="contour.mixture_pld:MixturePLDAccountant",
        covers=_MIXTURES | _SKELLAM,
        made_for=_MIXTURES,
        adjacencies=_ZERO_OUT,
        form=Form.CURVE,
        releases=Releases.MANY,
        is_default=True,
        plan_limit=0.5,
        named_limit=0.5,
        final_limit=0.0,
    ),
    AccountantEntry(
        name="zcdp",
        place="renyi.accountant:ZCDPAccountant",
        covers=_GAUSSIANS,
        made_for=_GAUSSIANS,
        form=Form.ORDERS,
    ),
    AccountantEntry(
        name="gaussian-pld",
        place="loss.gaussian_pld:GaussianPLDAccountant",
        covers=frozenset({GaussianEvent}),
        made_for=frozenset({GaussianEvent}),
        form=Form.PRODUCT,
        is_default=True,
    ),
    AccountantEntry(
        name="skellam-paper",
        place="published.skellam:SkellamPaperAccountant",
        covers=_INTEGERS,
        made_for=_SKELLAM,
        form=Form.ORDERS,
    ),
    AccountantEntry(
        name="ddgauss-paper",
        place="published.ddgauss:DDGaussPaperAccountant",
        covers=_SUMS | _GAUSSIANS,
        made_for=_SUMS,
        form=Form.ORDERS,
        is_fallback=True,
    ),
    AccountantEntry(
        name="cpsgd-recalled",
        place="published.cpsgd:BinomialPaperAccountant",
        covers=_BINOMIALS,
        made_for=_BINOMIALS,
        form=Form.CLOSED,
    ),
)

_ROWS: Final = MappingProxyType({entry.name: entry for entry in CATALOGUE})
_OWN_ROWS: Final[dict[str, AccountantEntry]] = {}
_OWN: Final[dict[str, type[Accountant]]] = {}


def register_accountant(
    accountant: type[Accountant], *, covers: Iterable[type[NoiseEvent]]
) -> type[Accountant]:
    """Let plans and offers name an accountant of this program.

    It is asked where it is named, and never by default. What it states is `numerical`
    with an own proof at most, and clients accept that only where their limits say so.
    Every process that plans or checks with it registers it first.

    Args:
        accountant: A subclass of `Accountant` whose `name` begins with "own-".
        covers: Kinds of release that it has a theorem for, alone or together.

    Returns:
        The class.

    Raises:
        ParameterError: It is no such class, or another one has the name.
    """
    given: object = accountant
    if not (isinstance(given, type) and issubclass(given, Accountant)):
        raise ParameterError(
            "an accountant is a class that derives from dpnoise.Accountant",
            parameter="accountant",
        )
    kinds = frozenset(covers)
    register_own(_OWN, getattr(accountant, "name", None), accountant)
    _OWN_ROWS[accountant.name] = AccountantEntry(
        name=accountant.name,
        place="",
        form=Form.CLOSED,
        covers=kinds,
        made_for=kinds,
        adjacencies=accountant.adjacencies,
    )
    return accountant


def accountant_names() -> tuple[str, ...]:
    """Return the names of all accountants, in the order in which they are asked.

    Those that this program has registered come last.
    """
    return (*_ROWS, *_OWN_ROWS)


def accountant_entry(name: str) -> AccountantEntry:
    """Return the row of an accountant.

    Args:
        name: One of `accountant_names()`, or one with "hypothetical-" before it.

    Raises:
        ParameterError: The accountant is unknown; the error names the nearest one.
    """
    bare = name.removeprefix(HYPOTHETICAL_PREFIX)
    row = _ROWS.get(bare) or _OWN_ROWS.get(bare)
    if row is None:
        near = difflib.get_close_matches(name.replace("_", "-"), _ROWS, n=1)
        raise ParameterError(
            f"accountant must be one of {', '.join(_ROWS)}; got {name!r}",
            parameter="accountant",
            value=name,
            nearest=near[0] if near else None,
        )
    return row


def accountant_class(name: str) -> type[Accountant]:
    """Return the class behind a name; arguments and errors as of `accountant_entry`."""
    entry = accountant_entry(name)
    if entry.name in _OWN:
        return _OWN[entry.name]
    found: type[Accountant] = load_class("dpnoise.accounting", entry.place)
    return found


def make_accountant(
    name: str,
    *,
    adversary: Adversary,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    estimating: bool = False,
) -> Accountant:
    """Build an empty accountant.

    Args:
        name: One of `accountant_names()`, or one with "hypothetical-" before it. That
            one counts the sampling of users even if every participant adds noise of its
            own, as published experiments do. Its figures are marked
            `Status.HYPOTHETICAL`, because no deployment has that privacy.
        adversary: The adversary that its answers must hold against.
        adjacency: Which neighbouring inputs must look alike.
        estimating: Whether its answers may be estimates, as of `Accountant`.

    Returns:
        An accountant that has composed nothing yet.

    Raises:
        ParameterError: The name is unknown, or the accountant has no theorem for the
            adjacency; the error names the nearest choice that works.
    """
    return accountant_class(name)(
        adversary=adversary,
        adjacency=adjacency,
        hypothetical=name.startswith(HYPOTHETICAL_PREFIX),
        estimating=estimating,
    )


def closed_forms(event: PrivacyEvent) -> tuple[str, ...]:
    """Name the default accountants that cover an event by a formula.

    Args:
        event: What is to be released.

    Returns:
        Names, those that are made for a part of it first; none where none covers it.
    """
    kinds = frozenset(type(release) for release, *_ in flatten(event))
    found = [
        entry
        for entry in CATALOGUE
        if entry.form is Form.CLOSED and entry.is_default and kinds <= entry.covers
    ]
    found.sort(key=lambda entry: kinds.isdisjoint(entry.made_for))
    return tuple(entry.name for entry in found)


def default_accountants(
    event: PrivacyEvent, *, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> tuple[str, ...]:
    """Name the proven or certified accountants that cover an event, cheapest first.

    Args:
        event: The event to release.
        adjacency: Which neighbouring inputs must look alike.

    Returns:
        Names of accountants that have a theorem for every part of the event; those
        that are asked only where the others waste noise come last. For some parameters
        a theorem may still refuse, or state an infinite loss.

    Raises:
        UnknownEventError: No single one covers every part. Name an accountant yourself.
    """
    parts = list(flatten(event))
    kinds = frozenset(type(release) for release, *_ in parts)
    releases = sum(count for _, _, count, _ in parts)
    shifts = sum(
        count * release.l2_sensitivity**2
        for release, _, count, _ in parts
        if isinstance(release, SkellamEvent | DiscreteGaussianEvent | BinomialEvent)
    )
    found = [
        entry
        for entry in CATALOGUE
        if entry.is_asked(kinds, releases, shifts, adjacency)
    ]
    if found:
        found.sort(key=lambda entry: entry.is_fallback)
        return tuple(entry.name for entry in found)
    raise UnknownEventError(
        "no proven or certified accountant covers "
        + " with ".join(sorted(kind.__name__ for kind in kinds))
        + f" under {adjacency.value} adjacency; name an accountant, or choose another "
        "mechanism or adjacency"
    )


def default_accountant(
    event: PrivacyEvent,
    *,
    delta: float,
    adversary: Adversary,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
) -> str:
    """Name the accountant that states the least epsilon for an event.

    Args:
        event: The event to release.
        delta: Failure probability in (0, 1).
        adversary: The adversary that the statement must hold against.
        adjacency: Which neighbouring inputs must look alike.

    Returns:
        One of `default_accountants(event)`; of several equal ones the cheapest.

    Raises:
        ParameterError: Delta is not in (0, 1).
        UnknownEventError: No proven or certified accountant covers every part.
    """
    names = default_accountants(event, adjacency=adjacency)
    best, least = names[0], math.inf
    for name in names:
        account = make_accountant(name, adversary=adversary, adjacency=adjacency)
        try:
            stated = account.compose(event).epsilon(delta)
        except TheoremNotApplicableError:
            continue
        if stated < least:
            best, least = name, stated
    return best


def accounting_cost(
    release: NoiseEvent,
    accountant: str,
    *,
    times: int = 1,
    delta: float = _SMALLEST_DELTA,
    rate: float = 1.0,
) -> float:
    """Estimate what one epsilon of a release costs, before it is asked for.

    A client computes the privacy of a task that a server describes. Some accountants
    tabulate moments over every coordinate of a vector and every integer that noise may
    reach. So a few digits in a description can cost hours.

    Args:
        release: One release.
        accountant: Name of the accountant.
        times: How often the release is repeated, at least 1.
        delta: Probability that the epsilon is asked for, in (0, 1).
        rate: Of the selection before each release, in (0, 1].

    Returns:
        Table cells, as of `Accountant.cost`.

    Raises:
        ParameterError: The accountant is unknown.
    """
    return accountant_class(accountant).cost(
        release, times=times, delta=delta, rate=rate
    )


def check_accounting_cost(
    release: NoiseEvent, accountant: str, *, times: int, delta: float, rate: float
) -> None:
    """Refuse an accountant whose answer no client would wait for.

    The same estimate refuses a plan before it is made, in the same words: what is
    planned is never what a client refuses. Arguments as of `accounting_cost`.

    Raises:
        ParameterError: Its answer costs more than `MAX_ACCOUNTING_COST`; where no
            accountant is named, the planner takes one whose answer does not.
    """
    cost = accounting_cost(release, accountant, times=times, delta=delta, rate=rate)
    if cost <= MAX_ACCOUNTING_COST:
        return
    raise ParameterError(
        f"{accountant} would fill {cost:.2g} table cells to check it, at most "
        f"{MAX_ACCOUNTING_COST:.2g} are accepted: plan on a coarser grid, or name no "
        "accountant",
        parameter="accountant",
        value=accountant,
    )
