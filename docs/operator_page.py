"""Look at the operator's web page in a real browser: `make page-check`.

It runs an aggregator with three tasks in this process, one of which has a name that
would break a careless page. It opens its page in Debian's Chromium without a window,
compares what the browser made of it with what is true, and takes the pictures in
`docs/pictures`.

    python docs/operator_page.py docs/pictures
"""

import asyncio
import html
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.client.client import Client
from secagg.config import TaskSettings, load_task_settings
from secagg.config.server import ServerSection
from secagg.errors import SecAggError
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
)
from secagg.server.server import OperatedServer
from secagg.server.service import watching
from secagg.server.supervisor import TaskSupervisor

HOSTILE: Final = "<script>document.title='taken'</script>"
CLIENTS: Final = tuple(f"hospital-{number}" for number in range(1, 7))
EXACT: Final = f'[noise]\nnone = "{NO_NOISE_ACKNOWLEDGEMENT}"\n'
BUDGET: Final = """[noise]
mechanism = "skellam"
epsilon = 4.0
delta = 1e-6
l2_clip = 1.0
"""


def task_of(  # noqa: PLR0913 - a row of the scene
    name: str,
    directory: Path,
    *,
    steps: int,
    clients: Sequence[str],
    cohort: tuple[int, int, int],
    noise: str,
    schedule: str = "continuous",
) -> TaskSettings:
    """Return a task as an operator's file says it."""
    least, most, survivors = cohort
    names = ", ".join(f'"{each}"' for each in clients)
    path = directory / "task.toml"
    path.write_text(
        f'[task]\nid = "{name}"\nsteps = {steps}\ninvited = [{names}]\n'
        f'schedule = "{schedule}"\n'
        "[vector]\ndimension = 4\n"
        f"[cohort]\nmin_clients = {least}\nmax_clients = {most}\n"
        f"min_survivors = {survivors}\n{noise}"
        "[rounds]\nshare_keys = 1\nmasked_input = 1\nunmasking = 1\n"
    )
    return load_task_settings(path)


@dataclass(frozen=True, slots=True)
class Scene:
    """An aggregator in the middle of its day.

    Attributes:
        server: Open.
        page: Where its page is.
    """

    server: OperatedServer
    page: str


async def give(server: OperatedServer, task: str, name: str) -> None:
    """Take part once; clients that are let go or turned away are part of the scene."""
    with suppress(SecAggError):
        async with Client(
            server.connection(name),
            task=task,
            privacy_limits=ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT),
            cohort=ClientPolicy(min_clients=2, min_survivors=2, require_noise=False),
        ) as client:
            await client.contribute([1, 2, 3, 4])


async def joined(server: OperatedServer, task: str, count: int) -> None:
    """Return when so many clients are in the open session of a task."""
    async for progress in server.progress():
        if progress.task_id == task and progress.joined >= count:
            return


async def ended(server: OperatedServer, task: str, number: int) -> None:
    """Return when a later session of a task than this one is open."""
    async for progress in server.progress():
        if progress.task_id == task and progress.session_number > number:
            return


@asynccontextmanager
async def scene(directory: Path, paused: str, reason: str) -> AsyncIterator[Scene]:
    """Run it until the block is left.

    Args:
        directory: For everything that it writes.
        paused: Name of the task that is paused.
        reason: Why it is.
    """
    section = ServerSection(page_listen="127.0.0.1:0", state_dir=directory / "state")
    await asyncio.to_thread(directory.mkdir)
    keeper = TaskSupervisor(
        directory / "sums", section.state_dir, own_task=None, notify=lambda _: None
    )
    server = OperatedServer(
        "127.0.0.1:0",
        insecure_for_tests=True,
        state_dir=section.state_dir,
        rollback_mark=directory / "mark",
    )
    beds, glucose = "bed-occupancy", "glucose-model"
    tasks = [
        task_of(
            beds,
            directory,
            steps=24,
            clients=CLIENTS,
            cohort=(3, 4, 3),
            noise=EXACT,
        ),
        task_of(
            glucose,
            directory,
            steps=100,
            clients=(),
            cohort=(8, 10, 7),
            noise=BUDGET,
            schedule="every 1h",
        ),
        task_of(
            paused,
            directory,
            steps=1,
            clients=("a", "b"),
            cohort=(2, 2, 2),
            noise=EXACT,
        ),
    ]
    async with server:
        await keeper.start(server, tasks)
        async with watching(server, section, None) as watched:
            # Two sums, the second without a client that fell silent.
            await asyncio.gather(*(give(server, beds, each) for each in CLIENTS[:4]))
            await ended(server, beds, 1)
            silent = asyncio.ensure_future(give(server, beds, CLIENTS[0]))
            await joined(server, beds, 1)
            silent.cancel()
            await asyncio.gather(*(give(server, beds, each) for each in CLIENTS[1:4]))
            await ended(server, beds, 2)
            # One that its operator ended, and one that waits for two of four.
            (live,) = (s for s in server.live() if s.progress.task_id == beds)
            await server.abort_session(live.progress.session_id, "the form was wrong")
            await ended(server, beds, 3)
            waiting = [
                asyncio.ensure_future(give(server, beds, each)) for each in CLIENTS[:2]
            ]
            await joined(server, beds, 2)
            for _ in range(3):
                await give(server, beds, "visitor")
            await keeper.pause(paused, reason=reason)
            yield Scene(server, f"http://{watched.page}/")
            for each in waiting:
                each.cancel()
        server.drain()
        await keeper.close()


class Browser:
    """Chromium without a window; every call is a process of its own.

    Args:
        program: Where it is.
        directory: For its profile.
    """

    def __init__(self, program: str, directory: Path) -> None:
        self._command = (
            program,
            "--headless",
            "--no-sandbox",  # the page is ours, and containers have no user namespaces
            "--disable-gpu",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            f"--user-data-dir={directory / 'profile'}",
        )

    async def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            (*self._command, *arguments),
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )

    async def read(self, page: str) -> tuple[str, list[str]]:
        """Return what the browser made of a page, and what it complained of."""
        done = await self._run("--dump-dom", page)
        return done.stdout, re.findall(r".*CONSOLE.*", done.stderr)

    async def picture(self, page: str, path: Path, size: str, *, dark: bool) -> None:
        """Write a picture of a page, as wide and high as `size` says."""
        colours = ("--blink-settings=preferredColorScheme=0",) if dark else ()
        await self._run(f"--window-size={size}", f"--screenshot={path}", *colours, page)


def check(shown: str, complaints: Sequence[str]) -> None:
    """Compare what a browser shows with the scene; AssertionError where it differs."""
    words = html.unescape(re.sub(r"<[^>]+>", " ", shown))
    wanted = [HOSTILE, "<i>never</i> obeyed", "the form was wrong", "NOT_INVITED"]
    wanted += ["2 of 3", "hospital-3, hospital-4, hospital-5, hospital-6"]
    missing = [each for each in wanted if each not in words]
    if missing or complaints or "<script" in shown or "taken</title>" in shown:
        raise AssertionError(f"not shown: {missing}; the browser says: {complaints}")


async def main(folder: Path) -> None:
    """Check the page, and write its pictures."""
    program = shutil.which("chromium")
    if program is None:
        sys.exit("chromium is not here; Debian has it in the package chromium")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        browser = Browser(program, directory)
        async with scene(
            directory / "hostile", HOSTILE, "<i>never</i> obeyed"
        ) as shown:
            check(*await browser.read(shown.page))
        usual = ("discharge-notes", "the export of May is missing")
        async with scene(directory / "usual", *usual) as shown:
            for what, size, dark in (
                ("operator_page", "1280,1180", False),
                ("operator_page_dark", "1280,1180", True),
                ("operator_page_phone", "420,1600", False),
            ):
                path = (folder / f"{what}.png").resolve()
                await browser.picture(shown.page, path, size, dark=dark)
                sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
