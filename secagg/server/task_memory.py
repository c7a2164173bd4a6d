"""Remembers what a task was planned to be, so that a restart runs the same task.

Rule 1: parameters belong to the settings they were made from; other settings are
        planned afresh.
Rule 2: within one task, noise never changes by itself: a newer planner that would
        choose differently is not asked again.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

from secagg.config import ServerSettings
from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.parameters import ProtocolParameters
from secagg.primitives.canonical import Reader
from secagg.storage.vector_files import write_json

__all__ = ["RememberedTask", "digest_of"]

# What decides the parameters; where to listen and store does not.
_DECISIVE = ("task", "vector", "cohort", "noise", "rounds")


@dataclass(frozen=True, slots=True)
class RememberedTask:
    """Parameters of a task as they were first worked out.

    Attributes:
        parameters: Of every session.
        forecast_rmse: Expected error of one entry of a sum, caller's units; None
            without noise.
    """

    parameters: ProtocolParameters
    forecast_rmse: float | None

    @classmethod
    def load(cls, path: Path, settings: ServerSettings) -> Self | None:
        """Return what was remembered for these settings, if anything.

        Raises:
            ServiceError: STORAGE_FAILED; the file is damaged or of another release.
        """
        try:
            document = json.loads(path.read_bytes())
            if document["settings"] != digest_of(settings):
                return None
            reader = Reader(bytes.fromhex(document["parameters"]), "parameters")
            parameters = ProtocolParameters.decode_from(reader)
            reader.end()
            rmse = document["forecast_rmse"]
            return cls(parameters, None if rmse is None else float(rmse))
        except FileNotFoundError:
            return None
        except OSError as error:
            complaint = f"cannot be read: {error.strerror}"
        except (ValueError, KeyError, TypeError, RemoteProtocolError):
            complaint = "is damaged or of another release"
        raise ServiceError(
            f"{path} {complaint}",
            code=ErrorCode.STORAGE_FAILED,
            next_step="Finish the task with the release that began it, or remove the "
            "file and choose a new task.id.",
        )

    def save(self, path: Path, settings: ServerSettings) -> None:
        """Remember the parameters for these settings.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        write_json(
            path,
            {
                "settings": digest_of(settings),
                "parameters": self.parameters.encode().hex(),
                "forecast_rmse": self.forecast_rmse,
            },
        )


def digest_of(settings: ServerSettings) -> str:
    """Return a digest of everything that decides a task's parameters."""
    decisive: Mapping[str, object] = {
        name: dataclasses.asdict(getattr(settings, name)) for name in _DECISIVE
    }
    text = json.dumps(decisive, sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()
