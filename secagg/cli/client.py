"""`secagg client`: contribute one vector, and get the sum."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secagg.cli.options import ConfigOption, JSONOption, SetOption, ShowSettingsOption
from secagg.cli.output import Output

if TYPE_CHECKING:
    from secagg.config import ClientSettings
    from secagg.programs.contributor import ReleasedSum
    from secagg.programs.file_input import FileInput
    from secagg.runtime.client_runner import ClientProgress

__all__ = ["client"]


def client(  # noqa: PLR0913 - one parameter per flag
    *,
    config: ConfigOption,
    vector: Annotated[
        Path,
        typer.Option("--input", metavar="X.npy", help="The vector to contribute."),
    ],
    sum_path: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="SUM.npy", help="Where to write the released sum."
        ),
    ] = None,
    overrides: SetOption = None,
    show_settings: ShowSettingsOption = False,
    as_json: JSONOption = False,
) -> None:
    """Contribute one vector to a sum.

    The vector never leaves this machine as it is: it is clipped, gets a share of
    noise, and is masked. A client that was stopped goes on where it stood when it is
    started again with the same input.

    Example: secagg client --config client.toml --input x.npy --output sum.npy
    """
    import asyncio
    import os

    from secagg.cli.logs import log_to_stderr
    from secagg.config import load_client_settings
    from secagg.programs.file_input import FileInput

    output = Output(as_json=as_json)
    loaded = load_client_settings(
        config, environment=os.environ, overrides=overrides or ()
    )
    if show_settings:
        output.table(("setting", "value", "from"), loaded.rows(), title="Settings")
        output.result({key: value for key, value, _ in loaded.rows()})
        return
    log_to_stderr(loaded.settings.client.log_level)
    source = FileInput.load(vector)
    released = asyncio.run(_contribute(loaded.settings, source, sum_path, output))
    output.result(
        {
            "sessions": [
                {
                    "session_number": each.outcome.descriptor.session_number,
                    "inputs": each.outcome.survivors,
                    "privacy": None if each.privacy is None else each.privacy.to_dict(),
                }
                for each in released
            ],
            "output": None if sum_path is None else str(sum_path),
        }
    )


async def _contribute(
    settings: "ClientSettings",
    source: "FileInput",
    sum_path: Path | None,
    output: Output,
) -> "list[ReleasedSum]":
    from secagg.programs.contributor import contributor
    from secagg.programs.vector_files import write_vector

    def show(progress: "ClientProgress") -> None:
        session = (
            f"session {progress.session_number}: " if progress.session_number else ""
        )
        reason = f": {progress.reason}" if progress.reason else ""
        size = (
            f" ({progress.sent_bytes:,} of {progress.total_bytes:,} bytes)"
            if progress.total_bytes
            else ""
        )
        output.line(f"{session}{progress.phase}{size}{reason}")

    released: list[ReleasedSum] = []
    async with contributor(
        settings, source, fetch_sum=sum_path is not None, on_progress=show
    ) as one:
        while len(released) < settings.client.sessions:
            result = await one.take_part()
            released.append(result)
            output.line(f"the sum adds up {result.outcome.survivors} inputs")
            if result.privacy is not None:
                stated = result.privacy.server
                output.line(
                    f"the task costs this client epsilon {stated.epsilon:.4g} at delta "
                    f"{stated.delta:.3g} against the server ({stated.status}, "
                    f"{stated.accountant})"
                )
            if sum_path is not None and result.values is not None:
                write_vector(sum_path, result.values)
                output.line(f"wrote {sum_path}")
    return released
