"""The wheel that `make wheel` builds, installed where nothing of the checkout is."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Works wherever pip has put the dependencies, and needs no index: the developers'
# site-packages come last, so that only what the wheel lacks is found there.
BORROW = "import sys; sys.path.append({!r})\n"


def run(*words, **rest):
    done = subprocess.run(words, capture_output=True, text=True, check=False, **rest)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation"),
        *("--outdir", out, ROOT),
        cwd=out,  # `build/` in the checkout is no module
    )
    (made,) = out.glob("*.whl")
    return made


def test_the_wheel_contains_exactly_the_packages_and_their_data(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    packages = {name for name in tops if not name.endswith(".dist-info")}
    assert packages == {"secagg", "dpnoise"}
    kept = {
        path.relative_to(ROOT).as_posix()
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"secagg/py.typed", "dpnoise/py.typed", "secagg/v1/protos.sha256"} <= names
    # Whatever stands in a package is there: code, types, data.
    assert kept <= names
    assert not [name for name in names if "test_" in name or "conftest" in name]


def test_an_empty_environment_with_the_wheel_runs_every_promised_name(wheel, tmp_path):
    home = tmp_path / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "PIP", "SECAGG"))
    }
    python = home / "bin" / "python"
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install"),
        *("--no-index", "--no-deps", "--disable-pip-version-check", wheel),
        env=environment,
        cwd=tmp_path,
    )
    site = Path(
        run(python, "-c", "import site; print(site.getsitepackages()[0])").strip()
    )
    borrowed = sysconfig.get_paths()["purelib"]
    (site / "borrowed.pth").write_text(BORROW.format(borrowed))

    def secagg(*words):
        return run(home / "bin" / "secagg", *words, env=environment, cwd=tmp_path)

    version = wheel.name.split("-")[1]
    assert secagg("--version").strip() == version
    assert "simulate" in secagg("--help")
    assert "exact" in secagg("simulate", "--clients", "5", "--dimension", "10")
    script = (
        "import pathlib, secagg, dpnoise\n"
        "from importlib import resources\n"
        "for package in (secagg, dpnoise):\n"
        "    assert pathlib.Path(package.__file__).is_relative_to({!r}), package\n"
        "    assert resources.files(package).joinpath('py.typed').is_file()\n"
        "from secagg import advanced\n"
        "for module in (secagg, advanced, dpnoise):\n"
        "    for name in module.__all__:\n"
        "        getattr(module, name)\n"
    )
    run(python, "-c", script.format(str(site)), env=environment, cwd=tmp_path)
