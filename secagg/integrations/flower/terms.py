"""What the operator of a node allows: read from a file of the node, never from an app.

Rule 1: Flower delivers the app from the server, so nothing in an app relaxes a limit.
Rule 2: one state directory for the node, whatever number it is known by: a node that
        returns under another number has spent what it has spent.
Rule 3: a simulation has states of its own, and never spends a node's budget.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from secagg.client.step_client import StepClient
from secagg.config.loader import load_settings, setting
from secagg.config.policy import (
    CohortPolicySection,
    cohort_of,
    privacy_limits_of,
    total_of,
)
from secagg.errors import ErrorCode
from secagg.protocol.policy import (
    ClientPolicy,
    ExactSumWaiver,
    PrivacyLimits,
    TotalBudget,
)

AGGREGATOR: Final = "flower"
"""Name of the aggregator in offers: nodes take SuperLink and ServerApp as one."""
SETTING: Final = "secagg-terms"
"""Key of a node's configuration that names its file."""
_FILE_OF_SIMULATION: Final = "terms.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSection:
    """The node."""

    tasks: tuple[str, ...] = setting(
        "Names of the tasks that the node takes part in; each has a budget of its own."
    )
    state_dir: Path | None = setting(
        "Sessions and spent budget, so that no input is ever sent twice; must survive "
        "restarts, and in no backup. Required but in a simulation.",
        default=None,
    )
    rollback_mark: Path | None = setting(
        "File on another volume that tells a state that was restored from the newest "
        "one. Empty for one under ~/.local/state/secagg.",
        default=None,
    )
    evaluate: bool = setting(
        "Answer evaluate messages: their metrics leave the node in the clear.",
        default=False,
    )


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The file of a node."""

    node: NodeSection
    policy: CohortPolicySection


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTerms:
    """What one node accepts.

    Attributes:
        tasks: That it takes part in.
        privacy_limits: Of each task, or their waiver.
        cohort: Limits of the cohort.
        total: What all tasks together may cost its data; None for no total.
        state_dir: Where its sessions and spent budgets are.
        rollback_mark: File that tells a restored state; None for the default.
        evaluate: Whether it answers evaluate messages in the clear.
    """

    tasks: frozenset[str]
    privacy_limits: PrivacyLimits | ExactSumWaiver
    cohort: ClientPolicy
    total: TotalBudget | None
    state_dir: Path
    rollback_mark: Path | None
    evaluate: bool

    def client(self, identity: str) -> StepClient:
        """Return the client of a node, not yet open.

        Args:
            identity: Name of the node, see `node_name`.
        """
        return StepClient(
            identity,
            aggregator=AGGREGATOR,
            privacy_limits=self.privacy_limits,
            tasks=self.tasks,
            cohort=self.cohort,
            state_dir=self.state_dir,
            rollback_mark=self.rollback_mark,
            total=self.total,
        )


def node_name(node: int) -> str:
    """Return the name in the protocol of a node of Flower."""
    return f"node-{node:020d}"


def terms_of_node(node_config: Mapping[str, object]) -> NodeTerms:
    """Read the terms of a node.

    Args:
        node_config: `Context.node_config`, as the operator of the node has set it.

    Raises:
        ServiceError: BAD_SETTINGS; there is no file, or it contradicts itself.
    """
    named = node_config.get(SETTING)
    if not isinstance(named, str) or not named:
        raise ErrorCode.BAD_SETTINGS.error(
            f"the node has no {SETTING}, so that it is not known what its operator "
            "accepts",
            fix=f"Start it with --node-config '{SETTING}=\"/path/to/terms.toml\"'.",
        )
    return _terms_in(named, _version_of(Path(named)))


def _version_of(path: Path) -> tuple[int, ...]:
    """Return what a change of a file changes; () where it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return ()  # to read it says why
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


# A node reads its file at every message, which would cost a fifth of the answer.
@lru_cache(maxsize=8)
def _terms_in(named: str, _version: tuple[int, ...]) -> NodeTerms:
    """Read the terms of a node from its settings file."""
    path = Path(named)
    settings = _settings(path)
    if settings.node.state_dir is None:
        raise ErrorCode.BAD_SETTINGS.error(
            f"node.state_dir is missing in {path}: without it a node would forget "
            "what it has answered and spent",
            fix="Name a directory of this node alone.",
        )
    return _terms_from(settings, settings.node.state_dir, settings.node.rollback_mark)


def terms_of_simulation(directory: Path, identity: str) -> NodeTerms:
    """Read the terms of all nodes of a simulation, with a state for one of them.

    Args:
        directory: Of the simulation: ``terms.toml`` is read there, and ``state`` and
            ``marks`` are made.
        identity: Name of the node.

    Raises:
        ServiceError: BAD_SETTINGS, as `terms_of_node`.
    """
    place = directory.absolute()
    terms = _terms_from(
        _settings(place / _FILE_OF_SIMULATION),
        place / "state" / identity,
        place / "marks" / identity,
    )
    if terms.total is None:
        return terms
    own = replace(terms.total, directory=None, rollback_mark=None)
    return replace(terms, total=own)


def _settings(path: Path) -> NodeSettings:
    return load_settings(NodeSettings, path=path, environment={}).settings


def _terms_from(
    settings: NodeSettings, state_dir: Path, mark: Path | None
) -> NodeTerms:
    """Return the terms that settings state."""
    policy, node = settings.policy, settings.node
    return NodeTerms(
        tasks=frozenset(node.tasks),
        privacy_limits=privacy_limits_of(policy),
        cohort=cohort_of(policy),
        total=total_of(policy),
        state_dir=state_dir,
        rollback_mark=mark,
        evaluate=node.evaluate,
    )
