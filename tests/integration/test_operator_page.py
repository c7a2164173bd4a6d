"""The operator's page: the scene of its pictures, in a browser where there is one."""

import runpy
import shutil
from pathlib import Path

import httpx

SCENE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "operator_page.py"))
CHROMIUM = shutil.which("chromium")


async def seen(page, directory):
    """Return a page as Debian's Chromium shows it; without one, as it is sent."""
    if CHROMIUM is not None:
        return await SCENE["Browser"](CHROMIUM, directory).read(page)
    async with httpx.AsyncClient() as client:
        return (await client.get(page)).text, []


async def test_the_page_escapes_hostile_names_in_its_scene(tmp_path):
    reason = "<i>never</i> obeyed"
    async with SCENE["scene"](tmp_path / "scene", SCENE["HOSTILE"], reason) as shown:
        page, complaints = await seen(shown.page, tmp_path)
    SCENE["check"](page, complaints)
