"""Settings that aggregator and client share: certificates, log, state."""

from dataclasses import dataclass
from pathlib import Path

from secagg.config.loader import setting


@dataclass(frozen=True, slots=True)
class TLSSection:
    """Files of mutual TLS; there is no plaintext mode."""

    ca: Path = setting("Certificate of the authority that signed the other side.")
    certificate: Path = setting("This program's own certificate.")
    key: Path = setting("Private key of that certificate; no other user may read it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSection:
    """Settings of any process that keeps a state and writes a log."""

    rollback_mark: Path | None = setting(
        "File outside state_dir and its backups that tells a restored state from the "
        "newest one; empty for one under ~/.local/state/secagg.",
        default=None,
    )
    log_level: str = setting(
        "Least severe log line on standard error.",
        default="info",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = setting(
        "How a log line is written: text for people, or json for programs, one object "
        "a line.",
        default="text",
        choices=("text", "json"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSection(ProcessSection):
    """Further settings of a process with receipts."""

    keep_receipts: int = setting(
        "How many receipts of one task stay, the latest ones.",
        default=10_000,
        low=16,
        high=1_000_000,
        unit="receipts",
    )
