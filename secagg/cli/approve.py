"""`secagg plan --approve`: verify a task's noise for clients that compare a hash only.

* The noise block is approved: mechanism, noise, budget and accountant. Each of them
  changes the hash.
* It is checked as a client of this release checks it: form and cost before anything is
  computed, then epsilon by the accountant that it names.
* The cohort is not in the block. A client compares it with its own policy, as always.
"""

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from secagg.cli.output import Output
from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError

if TYPE_CHECKING:
    from secagg.distributed_dp import NoisyTask, PrivacyReport


_SETTINGS: Final = ".toml"
_MAX_OFFER_BYTES: Final = 1 << 16  # an offer is a few kilobytes; a picture is no offer


def approve(path: Path, output: Output) -> None:
    """Verify the noise of an offer or of a server's settings, and print its hash.

    Args:
        path: A server's settings if it ends in .toml, otherwise an offer as bytes.
        output: Where to print.

    Raises:
        ServiceError: The file cannot be read, or the task has no noise.
        RemoteProtocolError: The noise cannot be used, or protects less than it claims.
    """
    from secagg.distributed_dp import text_above

    task = _task_of(path)
    report = _verify_claim(task)
    stated, budget = report.server, task.budget
    digest = sha256(task.parameters.noise_block).hexdigest()
    output.pairs(
        [
            ("approved hash", digest),
            (
                "epsilon",
                (
                    f"{text_above(stated.epsilon, 6)} ({stated.grounds}, "
                    f"{stated.accountant})"
                ),
            ),
            ("delta", f"{budget.delta:g}"),
            ("participations", f"{budget.participations} of one client"),
            ("spare sessions", str(budget.spare)),
            ("for", budget.privacy_unit),
            ("mechanism", task.mechanism.parameters.mechanism),
            ("selection rate", str(task.selection_rate)),
        ],
        title="Noise block",
    )
    output.line(
        "A client that compares this SHA-256 with that of a noise block relies on you "
        "for epsilon; the cohort is not part of it."
    )
    output.result(
        {
            "approved_hash": digest,
            "epsilon": stated.epsilon,
            "claimed_epsilon": budget.epsilon,
            "delta": budget.delta,
            "participations": budget.participations,
            "spare": budget.spare,
            "privacy_unit": budget.privacy_unit,
            "accountant": stated.accountant,
            "status": str(stated.status),
            "proof": str(stated.proof),
            "mechanism": task.mechanism.parameters.mechanism,
            "selection_rate": str(task.selection_rate),
        }
    )


def _verify_claim(task: "NoisyTask") -> "PrivacyReport":
    """Verify the task's own claim, as every client does."""
    from secagg.protocol.policy import PrivacyLimits

    claim = PrivacyLimits(
        max_epsilon=task.budget.epsilon,
        max_delta=task.budget.delta + task.graph_delta,
        min_colluder_fraction=0.0,
    )
    return task.check(claim)


def _task_of(path: Path) -> "NoisyTask":
    """Return the noisy task of an offer or of a settings file."""
    from secagg.distributed_dp import NoisyTask
    from secagg.protocol.descriptor import SessionDescriptor

    if path.suffix.lower() == _SETTINGS:
        return _plan_settings_file(path)
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_OFFER_BYTES + 1)
    except OSError as error:
        raise ErrorCode.BAD_SETTINGS.error(
            f"{path} cannot be read: {error.strerror}",
            fix="Name a file that holds an offer, or a server's settings.",
        ) from None
    if len(content) > _MAX_OFFER_BYTES:
        raise _no_offer(path, f"it has more than {_MAX_OFFER_BYTES} bytes")
    try:
        parameters = SessionDescriptor.decode(content).parameters
    except RemoteProtocolError as error:
        raise _no_offer(path, str(error.args[0])) from None
    if not parameters.noise_block:
        raise _exact_sums_error(path)
    return NoisyTask.from_parameters(parameters)


def _plan_settings_file(path: Path) -> "NoisyTask":
    """Plan the task of a settings file."""
    import os

    from secagg.config import load_server_settings
    from secagg.server.task.setup import prepare_task

    settings = load_server_settings(path, environment=os.environ, overrides=()).settings
    noised = prepare_task(
        settings, reports=settings.server.state_dir, keep=False
    ).noised
    if noised is None:
        raise _exact_sums_error(path)
    return noised


def _no_offer(path: Path, complaint: str) -> SecAggError:
    """Return the error of a file that is not an offer."""
    return ErrorCode.BAD_ENCODING.error(
        f"{path} is not an offer: {complaint}",
        fix="Name a file that holds an offer as a client received it, or a "
        "server's settings, whose name ends in .toml.",
    )


def _exact_sums_error(path: Path) -> SecAggError:
    """Return the error of a task without noise."""
    return ErrorCode.BAD_SETTINGS.error(
        f"{path} describes exact sums: there is no noise to approve",
        fix="Approve a task with noise.",
    )
