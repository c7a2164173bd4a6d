"""Build a release and try it where people will use it: `make release-check`.

    python tests/release/check.py --builder PYTHON --work DIRECTORY [CHECK ...]

It takes the last commit, not the working tree, and makes the source archive and the
wheel from it. Every check prints one line. A program that is not on this machine is
named; that alone is no failure. It ends with 1 if any check fails.

PYTHON has `build` and `cyclonedx-bom`. What is to be published lies in DIRECTORY/dist
afterwards: the source archive, the wheel and its bill of materials.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]

# Supported releases, oldest first; the oldest gets the lowest dependencies as well.
PYTHONS: Final = ("3.11", "3.12", "3.13")
# Half a minute of CPU, and every library that the wheel depends on.
QUICK: Final = (
    *("secagg/cli/test_streams.py", "secagg/config", "secagg/crypto", "secagg/wire"),
    *("secagg/test_blocking.py", "secagg/test_session_vectors.py"),
    *("dpnoise/encoding", "dpnoise/mechanisms"),
)
# Reads the source tree beside the tests, which an installation lacks.
OF_THE_SOURCE: Final = "tests/unit/secagg/wire/test_protos.py"
_PLAN: Final = (
    *("plan", "--clients", "20", "--dimension", "4", "--l2-clip", "1"),
    *("--epsilon", "4", "--delta", "1e-6", "--json"),
)
# In the extra dev for people and CI; no test imports them.
_TOOLS_ALONE: Final = frozenset(
    {"build", "hatchling", "ruff", "mypy", "import-linter"}
) | {"types-protobuf", "types-grpcio"}
# Too large for every check, or, as Flower does, with narrow ranges of what others need:
# `make engines`, `make flower`, `make frameworks` and `make test-all` try them.
_EXTRAS_ELSEWHERE: Final = frozenset(
    {"dev", "dev-services", "ray", "dask", "flower", "frameworks"}
)
_BOUND: Final = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[\w,]+\])?>=([\d.]+)")
# Of the Citation File Format 1.2.0: what a file must have, and may have at its top.
_CITED: Final = frozenset({"cff-version", "message", "title", "authors"})
_MAY_BE_CITED: Final = _CITED | {
    *("abstract", "commit", "contact", "date-released", "doi", "identifiers"),
    *("keywords", "license", "license-url", "preferred-citation", "references"),
    *("repository", "repository-artifact", "repository-code", "type", "url"),
    "version",
}
_DEMO: Final = ("--clients", "12", "--steps", "3")


class Fault(Exception):  # noqa: N818 - a finding, not an error of this program
    """A check failed; the text is its description."""


class Absent(Exception):  # noqa: N818 - a finding, not an error of this program
    """What a check needs is not on this machine."""


@dataclass
class Release:
    """The release at hand.

    Attributes:
        builder: Python with the tools that build and describe.
        work: Where everything is made.
    """

    builder: Path
    work: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Remove variables by which a program would find the checkout."""
        kept = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        self.environment = {
            name: value for name, value in os.environ.items() if name not in kept
        }
        self.environment["SOURCE_DATE_EPOCH"] = self.git("log", "-1", "--format=%ct")
        self.environment["OPENBLAS_NUM_THREADS"] = "1"

    @staticmethod
    def git(*words: str) -> str:
        """Return the output of git on the checkout."""
        return _run(["git", *words], cwd=ROOT).strip()

    @cached_property
    def tree(self) -> Path:
        """The last commit, without anything that happens to lie beside it."""
        place = self.work / "tree"
        archive = self.work / "tree.tar"
        self.git("archive", "--format=tar", f"--output={archive}", "HEAD")
        _unpack(archive, place)
        return place

    @cached_property
    def project(self) -> dict[str, Any]:
        """The table `project` of pyproject.toml."""
        text = (self.tree / "pyproject.toml").read_text("utf-8")
        project: dict[str, Any] = tomllib.loads(text)["project"]
        return project

    @cached_property
    def name(self) -> str:
        """The name of the release, as archives have it."""
        return f"{self.project['name']}-{self.project['version']}"

    @cached_property
    def dist(self) -> Path:
        """The directory with archive and wheel, built from the commit."""
        place = self.work / "dist"
        self.build(self.tree, place)
        return place

    def build(self, source: Path, place: Path) -> None:
        """Build source archive and wheel."""
        words = ["-m", "build", "--sdist", "--wheel", "--outdir", place, source]
        self.run([self.builder, *words])

    @cached_property
    def archive(self) -> Path:
        """The source archive."""
        return self.dist / f"{self.name}.tar.gz"

    @cached_property
    def wheel(self) -> Path:
        """The wheel."""
        (found,) = self.dist.glob("*.whl")
        return found

    @cached_property
    def unpacked(self) -> Path:
        """The source archive, unpacked."""
        _unpack(self.archive, self.work / "unpacked")
        return self.work / "unpacked" / self.name

    @cached_property
    def tests(self) -> Path:
        """The tests of the source archive, beside no package of ours."""
        place = self.work / "tests"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.unpacked, place)
        for package in ("secagg", "dpnoise"):
            shutil.rmtree(place / package)
        return place

    def python_of(self, release: str) -> Path:
        """Return an interpreter.

        Raises:
            Absent: No such interpreter is installed.
        """
        candidates = [shutil.which(f"python{release}")]
        homes = Path.home() / ".pyenv" / "versions"
        candidates += sorted(
            str(each) for each in homes.glob(f"{release}.*/bin/python")
        )
        for candidate in candidates:
            if candidate is not None:
                text = "import sys; print('%d.%d' % sys.version_info[:2])"
                done = subprocess.run(
                    [candidate, "-c", text],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.stdout.strip() == release:
                    return Path(candidate)
        raise Absent(f"Python {release} is not on this machine")

    def environment_with(
        self, name: str, python: Path, *wanted: str, constraints: Path | None = None
    ) -> Path:
        """Return the directory of programs of a new environment.

        It has no installer of its own, so that nothing in it but the product counts.
        """
        place = self.work / name
        shutil.rmtree(place, ignore_errors=True)
        self.run([python, "-m", "venv", "--without-pip", place])
        bounds = [] if constraints is None else ["--constraint", constraints]
        pip = [self.builder, "-m", "pip", "--disable-pip-version-check"]
        words = ["--python", place / "bin" / "python", "install", "--quiet"]
        self.run([*pip, *words, *bounds, *wanted])
        return place / "bin"

    def run(self, words: Sequence[str | Path], *, cwd: Path | None = None) -> str:
        """Run a program away from the checkout; return its output."""
        return _run(words, cwd=cwd or self.work, environment=self.environment)


def _run(
    words: Sequence[str | Path],
    *,
    cwd: Path,
    environment: dict[str, str] | None = None,
) -> str:
    done = subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        command = " ".join(str(each) for each in words)
        raise Fault("\n".join([f"{command} ended with {done.returncode}", *said[-25:]]))
    return done.stdout


def _unpack(archive: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    with tarfile.open(archive) as opened:
        opened.extractall(place, filter="data")


def _demand(holds: object, fault: str) -> None:
    if not holds:
        raise Fault(fault)


# --- the checks ---------------------------------------------------------------------


def check_versions(release: Release) -> str:
    """The version is the same in all places."""
    version = release.project["version"]
    heading = f"\n## {version} ("
    changes = (release.tree / "CHANGELOG.md").read_text("utf-8")
    _demand(heading in changes, f"CHANGELOG.md has no section for {version}")
    supported = [
        each.rpartition(" ")[2]
        for each in release.project["classifiers"]
        if re.search(r":: 3\.\d+$", each)
    ]
    _demand(
        tuple(supported) == PYTHONS,
        f"classifiers name {supported}, and this check tries {list(PYTHONS)}",
    )
    return f"{version} in pyproject.toml and CHANGELOG.md"


def check_citation(release: Release) -> str:
    """CITATION.cff is of this release, and as the format demands."""
    cited = yaml.safe_load((release.tree / "CITATION.cff").read_text("utf-8"))
    project = release.project
    missing, unknown = _CITED - cited.keys(), cited.keys() - _MAY_BE_CITED
    _demand(not missing, f"CITATION.cff lacks {sorted(missing)}")
    _demand(not unknown, f"CITATION.cff has unknown keys {sorted(unknown)}")
    _demand(cited["cff-version"] == "1.2.0", "CITATION.cff is of another version")
    for key in ("version", "license"):
        _demand(
            cited.get(key) == project[key],
            f"CITATION.cff says {key} {cited.get(key)!r}, pyproject.toml "
            f"{project[key]!r}",
        )
    _demand(cited["type"] in ("software", "dataset"), "CITATION.cff has another type")
    for author in cited["authors"]:
        _demand(
            "name" in author or {"family-names", "given-names"} & author.keys(),
            "CITATION.cff has an author without a name",
        )
    return f"{cited['title']!r}, {cited['version']}"


def check_archive(release: Release) -> str:
    """The source archive has what the commit has, and nothing else."""
    made = {"PKG-INFO"}
    with tarfile.open(release.archive) as opened:
        here = {
            member.name.partition("/")[2]
            for member in opened.getmembers()
            if member.isfile()
        }
    committed = set(release.git("ls-tree", "-r", "--name-only", "HEAD").splitlines())
    missing, added = committed - here, here - committed - made
    _demand(not missing, f"the archive lacks {sorted(missing)[:10]}")
    _demand(not added, f"the archive also has {sorted(added)[:10]}")
    return f"{len(here)} files, {release.archive.stat().st_size >> 10} KiB"


def check_wheel(release: Release) -> str:
    """The wheel has both packages, the licence and true metadata, and nothing else."""
    prefixes = ("secagg/", "dpnoise/")
    committed = {
        each
        for each in release.git("ls-tree", "-r", "--name-only", "HEAD").splitlines()
        if each.startswith(prefixes)
    }
    about = f"{release.name}.dist-info/"
    with zipfile.ZipFile(release.wheel) as opened:
        here = {each for each in opened.namelist() if not each.startswith(about)}
        facts = {
            each.removeprefix(about)
            for each in opened.namelist()
            if each.startswith(about)
        }
        metadata = opened.read(f"{about}METADATA").decode()
        programs = opened.read(f"{about}entry_points.txt").decode()
    missing, added = committed - here, here - committed
    _demand(not missing, f"the wheel lacks {sorted(missing)[:10]}")
    _demand(not added, f"the wheel also has {sorted(added)[:10]}")
    demanded = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    _demand(facts == demanded, f"{about} has {sorted(facts)}")
    readme = (release.tree / "README.md").read_text("utf-8")
    _demand(metadata.endswith(readme), "the description is not README.md")
    _demand(
        f"\nVersion: {release.project['version']}\n" in metadata,
        "the metadata has another version",
    )
    _demand("secagg = secagg.cli:main" in programs, "the wheel has no program secagg")
    _demand("py3-none-any" in release.wheel.name, "the wheel is not for any machine")
    return f"{len(here)} files, {release.wheel.stat().st_size >> 10} KiB"


def check_repeated(release: Release) -> str:
    """A second build, from the first archive at another time and place, is equal."""
    again = release.work / "again"
    shutil.rmtree(again, ignore_errors=True)
    source = again / "elsewhere" / release.name
    shutil.copytree(release.unpacked, source, copy_function=shutil.copy)
    old = os.umask(0o077)
    try:
        release.build(source, again / "dist")
    finally:
        os.umask(old)
    sums = {}
    for first in (release.archive, release.wheel):
        second = again / "dist" / first.name
        sums[first.name] = hashlib.sha256(first.read_bytes()).hexdigest()
        _demand(
            hashlib.sha256(second.read_bytes()).hexdigest() == sums[first.name],
            f"{first.name} has other bytes when it is built again",
        )
    return ", ".join(f"{name} {digest[:16]}…" for name, digest in sums.items())


def check_materials(release: Release) -> str:
    """The bill of materials names each package that an installation brings."""
    programs = release.environment_with(
        "plain", release.python_of(PYTHONS[0]), str(release.wheel)
    )
    place = release.dist / f"{release.name}.cdx.json"
    release.run(
        [
            *(release.builder, "-m", "cyclonedx_py", "environment"),
            *("--output-reproducible", "--mc-type", "library", "--of", "JSON"),
            *("--pyproject", release.tree / "pyproject.toml", "-o", place),
            programs / "python",
        ]
    )
    bill = json.loads(place.read_text("utf-8"))
    listed = {_canonical(each["name"]) for each in bill["components"]}
    direct = {_canonical(name) for name, _ in _bounds(release.project["dependencies"])}
    _demand(direct <= listed, f"the bill lacks {sorted(direct - listed)}")
    _demand(
        bill["metadata"]["component"]["name"] == release.project["name"],
        "the bill is of something else",
    )
    unlicensed = sorted(
        each["name"] for each in bill["components"] if not each.get("licenses")
    )
    told = f"; without a licence: {', '.join(unlicensed)}" if unlicensed else ""
    return f"CycloneDX {bill['specVersion']}, {len(listed)} packages{told}"


def check_demo(release: Release) -> str:
    """`secagg demo` works from the wheel, with its extra, far from the checkout."""
    programs = release.environment_with(
        "demo", release.python_of(PYTHONS[0]), f"{release.wheel}[examples]"
    )
    place = release.work / "demo-run"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    said = release.run([programs / "secagg", "demo", *_DEMO, "--json"], cwd=place)
    result = json.loads(said.splitlines()[-1])
    _demand(result["exact"], "a sum of the demo was not exact")
    origin = "import secagg, dpnoise; print(secagg.__file__, dpnoise.__file__)"
    imported = release.run([programs / "python", "-c", origin], cwd=place)
    _demand(str(ROOT / "secagg") not in imported, f"imported from {imported}")
    return (
        f"{result['clients']} clients, {result['clients_lost']} killed, "
        f"{result['wall_seconds']:.0f} s"
    )


def _check_suite(release: Release, python: str, *, lowest: bool) -> str:
    """Run the quick tests of the archive against the wheel."""
    interpreter = release.python_of(python)
    extras = release.project["optional-dependencies"]
    chosen = sorted(extras.keys() - _EXTRAS_ELSEWHERE)
    tools = [
        each for each in extras["dev"] if _BOUND.match(each)[1] not in _TOOLS_ALONE
    ]
    constraints = None
    if lowest:
        asked = [
            *release.project["dependencies"],
            *(d for e in chosen for d in extras[e]),
        ]
        constraints = release.work / "lowest.txt"
        rows = [f"{name}=={bound}\n" for name, bound in _bounds(asked)]
        constraints.write_text("".join(sorted(set(rows))), encoding="utf-8")
    name = f"python{python}-{'lowest' if lowest else 'highest'}"
    wanted = [f"{release.wheel}[{','.join(chosen)}]", *tools]
    programs = release.environment_with(
        name, interpreter, *wanted, constraints=constraints
    )
    planned = release.run([programs / "secagg", *_PLAN])
    _demand(json.loads(planned.splitlines()[-1])["epsilon_server"] <= 4, "a wrong plan")
    paths = [Path("tests/unit", each) for each in QUICK]
    pytest = [programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # What a library deprecates later is no fault of this release.
    chosen_tests = ["-o", "filterwarnings=default"]
    chosen_tests += ["-m", "not slow and not services and not golden"]
    left_out = ["--ignore", OF_THE_SOURCE]
    said = release.run([*pytest, *chosen_tests, *left_out, *paths], cwd=release.tests)
    return said.strip().splitlines()[-1]


def _bounds(requirements: Sequence[str]) -> list[tuple[str, str]]:
    """Return name and lower bound of requirements; each must have one."""
    found = []
    for each in requirements:
        bound = _BOUND.match(each)
        _demand(bound, f"{each!r} has no lower bound")
        assert bound is not None
        found.append((bound[1], bound[2]))
    return found


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _suite(python: str, *, lowest: bool) -> Callable[[Release], str]:
    return lambda release: _check_suite(release, python, lowest=lowest)


CHECKS: Final[dict[str, Callable[[Release], str]]] = {
    "versions": check_versions,
    "citation": check_citation,
    "archive": check_archive,
    "wheel": check_wheel,
    "repeated": check_repeated,
    "materials": check_materials,
    "demo": check_demo,
    "lowest": _suite(PYTHONS[0], lowest=True),
    **{f"python{each}": _suite(each, lowest=False) for each in PYTHONS},
}


def main(words: Sequence[str]) -> int:
    """Run the named checks, or all; return the exit status."""
    parser = argparse.ArgumentParser(description="Build a release and try it.")
    parser.add_argument("--builder", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=", ".join(CHECKS))
    given = parser.parse_args(words)
    if unknown := set(given.checks) - CHECKS.keys():
        parser.error(f"no such check: {', '.join(sorted(unknown))}")
    work = given.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    # Not resolved: a program of an environment is a link out of it.
    release = Release(given.builder.absolute(), work)
    _say(f"commit {release.git('log', '-1', '--format=%h %s')}")
    if release.git("status", "--porcelain", "--untracked-files=no"):
        _say("what is not committed is left out")
    failed = []
    for name, check in CHECKS.items():
        if given.checks and name not in given.checks:
            continue
        try:
            _say(f"ok      {name:<11} {check(release)}")
        except Absent as absence:
            _say(f"absent  {name:<11} {absence}")
        except Fault as fault:
            failed.append(name)
            _say(f"FAILED  {name:<11} {fault}")
    _say(
        f"failed: {', '.join(failed)}" if failed else f"all passed; see {work / 'dist'}"
    )
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
