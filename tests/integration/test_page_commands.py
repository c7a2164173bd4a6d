"""Every block of the pages runs, and prints what the page shows.

A line `machine$ command` runs in the directory of that machine, one below a directory
of the test's own; without a machine in that directory itself. `/etc` and its like are
folders there too. Lines below a command are what it prints: numbers may differ, and a
line of dots stands for any lines. A server and a client are processes; all other
commands of secagg run in this one, which has loaded the libraries already.

A `Page` says what its reader has and does beside its commands. `NOT_RUN` lists the
commands that need what no test may have, `ELSEWHERE` the blocks that other tests run.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from secagg_testing.programs import Programs

from secagg.cli import main
from secagg.config import load_client_settings, load_server_settings
from tests.integration import page_readers as readers

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "deploy" / "config"
BLOCK = re.compile(
    r"(?:Save as `([^`]+)`[^\n]*\n\n)?^( *)```(\w*)\n(.*?)^ *```",
    re.DOTALL | re.MULTILINE,
)
PROMPT = re.compile(r"^([\w-]*)[$#] (.*)$")
# Folders of a machine, which are folders of the test's.
MACHINE = re.compile(r"(?<![\w./])/(etc|var|run|srv|backup|opt|usr)/")
NUMBER = r"-?\d[\d.]*(?:e[+-]?\d+)?"

# What needs an index of packages, another user or a daemon. Each row is a pattern of a
# command, why no test runs it, and what has been tried in its place.
NOT_RUN = {
    r"make [\w-]+": "downloads tools; architecture/test_documents.py: each exists",
    r".*\bpip install\b.*": "takes an index; `make release-check` installs the wheel",
    r"\S*python3 -m venv \S+": "is of no use without pip; `make release-check`",
    r"\(?cd clients/typescript && npm .*": "takes an index; `make typescript`",
    r"(\w+=\d+ )?npm .*": "takes an index; `make typescript` runs the same",
    r"flower-supernode .*": "takes Flower's link; flower/test_flower_page.py has one",
    r"(systemctl|useradd|chown) .*": "takes systemd or root; `make unit-check`",
    r"install .* -o 10001 .*": "takes root",
    r"createdb .*": "takes PostgreSQL: the test of the marker services",
    r"secagg server .* --store .*": "takes PostgreSQL: the same test",
    r"(docker|kubectl|helm) .*": "takes a daemon or a cluster; `make deploy-check`",
    r"secagg demo --profile malicious-server-sparse": "a minute of 40 processes; "
    "integration/test_demo_processes.py: the same command, smaller",
    r"python benchmarks/papers/.*": "minutes; `make papers`, and "
    "unit/dpnoise/test_paper_tables.py: what the page shows of it",
}

# Blocks that another test runs: page and kind, and that test.
DOCUMENTS = "architecture/test_documents.py::test_the_python_"
ELSEWHERE = {
    ("README.md", "python"): DOCUMENTS + "of_the_readme_runs",
    ("README.md", "console"): "integration/test_cli_processes.py::"
    "test_the_walkthrough_of_the_readme_produces_the_sum_file",
    ("docs/accounting.md", "python"): DOCUMENTS
    + "of_the_page_on_bayesian_accounting_runs",
    ("docs/bench.md", "python"): DOCUMENTS + "of_the_page_on_experiments_runs",
    ("docs/embed.md", "python"): DOCUMENTS + "of_the_guide_for_embedders_runs",
    ("docs/learning.md", "python"): DOCUMENTS + "of_the_page_on_training_runs",
    ("docs/local-privacy.md", "python"): DOCUMENTS
    + "of_the_page_on_local_privacy_runs",
    ("docs/questions.md", "python"): DOCUMENTS + "about_questions_runs",
    ("docs/two-aggregators.md", "python"): DOCUMENTS
    + "of_the_page_on_two_aggregators_runs",
    ("docs/mechanisms.md", "python"): "unit/dpnoise/test_own_parts.py::"
    "test_the_python_of_the_page_runs",
    ("docs/flower.md", "python"): "flower/test_flower_page.py::"
    "test_the_blocks_of_the_page_run_over_the_loop_grid",
    ("docs/flower.md", "diff"): "flower/test_flower_page.py::"
    "test_the_diff_on_the_page_matches_its_blocks",
    ("docs/flower.md", "toml"): "flower/test_flower_page.py::"
    "test_the_terms_file_on_the_page_is_valid",
    ("docs/phones.md", "python"): "unit/secagg/client/test_visit.py::"
    "test_the_program_on_the_page_completes_a_visit",
    ("docs/states.md", "mermaid"): "architecture/test_protocol_documents.py::"
    "test_the_state_diagrams_are_those_of_the_tables",
    ("docs/transport.md", "ini"): "unit/secagg/transport/test_transport_page.py::"
    "test_openssl_issues_a_certificate_with_the_names_of_the_page",
    ("clients/typescript/README.md", "ts"): "../clients/typescript/tests/"
    "readme.test.ts::the blocks of the README compile",
    ("docs/write-a-client.md", "json"): "unit/secagg/conformance/test_kit.py::"
    "test_the_hello_on_the_page_is_valid",
    ("examples/mobile_backend/README.md", "console"): "integration/test_examples.py::"
    "test_phones_that_are_killed_or_offline_still_contribute",
}


def pages():
    """Return what people read: the page's name, and its path."""
    found = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")]
    for folder in ("docs/*", "deploy/**/*", "examples/**/*", "clients/*/*"):
        found += sorted(ROOT.glob(f"{folder}.md"))
    return {path.relative_to(ROOT).as_posix(): path for path in found}


def text_of(name):
    return pages()[name].read_text("utf-8")


def blocks(text):
    """Yield (file to save it as, kind, text) of each block of a page."""
    for path, indent, kind, block in BLOCK.findall(text):
        yield path, kind, textwrap.dedent(block) if indent else block


def pattern_of(shown):
    """Return what matches lines as shown, whatever their numbers and gaps are."""
    parts = []
    for line in shown.splitlines():
        if line == "…":
            parts.append(r"(?:.*\n)*?")
            continue
        for part in re.split(rf"({NUMBER})|( +)", line):
            if part is None or not part:
                continue
            if part.isspace():
                parts.append(" *")
            elif re.fullmatch(NUMBER, part):
                parts.append(rf" *{NUMBER} *")  # numpy aligns what it prints
            else:
                parts.append(re.escape(part))
        parts.append(r" *\n")
    return re.compile("".join(parts))


def assert_shown(shown, *printed):
    assert any(pattern_of(shown).match(each) for each in printed), (
        f"{shown}\n--- is not ---\n{printed[0]}"
    )


def steps(block):
    """Yield (machine, command, what is shown below it)."""
    lines = re.sub(r"\\\n\s*", " ", block).splitlines()
    starts = [at for at, line in enumerate(lines) if PROMPT.match(line)]
    assert not starts or starts[0] == 0, block
    for begin, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        machine, command = PROMPT.match(lines[begin]).groups()
        rest = lines[begin + 1 : end]
        if found := re.search(r"<<'(\w+)'", command):
            after = rest.index(found[1]) + 1
            command, rest = "\n".join([command, *rest[:after]]), rest[after:]
        shown = "\n".join(rest).rstrip()
        yield machine, command, f"{shown}\n" if shown else ""


def is_not_run(command):
    """Return whether a command is among those that no test runs."""
    bare = re.sub(r"\s+# .*", "", command)
    return any(re.fullmatch(each, bare, re.DOTALL) for each in NOT_RUN)


def nothing(_machines):
    """Bring nothing along."""


@dataclass
class Page:
    """What the reader of a page brings along, and does beside its commands.

    Attributes:
        prepare: Makes what the page takes for granted.
        changes: Pattern of a command, and what runs in its place.
        before: Pattern of a command, and what is done before it: a function of the
            machines, or a line for the shell.
        beside: Pattern of a command, and what starts others in other terminals.
        codes: Pattern of a command, and the code it ends with; else 0.
        after: Looks at what the page has led to.
        lasting: Pattern of a client's command that never ends: no aggregator is there.
    """

    prepare: Callable = nothing
    changes: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, Callable | str] = field(default_factory=dict)
    beside: Mapping[str, Callable] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    after: Callable = nothing
    lasting: str = r"--service"

    def ends(self, words):
        """Return whether a program ends by itself."""
        is_client = "client" in words[:2]
        lasting = is_client and re.search(self.lasting, " ".join(words))
        return "--until-done" in words or (is_client and not lasting)


class Machines:
    """Directories that stand for machines, and what runs in them."""

    def __init__(self, programs, ports, capsys, monkeypatch):
        self.programs, self.port = programs, str(ports[0])
        self.places = {
            role: f"127.0.0.1:{port}"
            for role, port in zip(("leader", "helper"), ports, strict=True)
        }
        self.capsys, self.monkeypatch = capsys, monkeypatch
        self.directory = programs.directory
        self.running = []
        self.has_clients = False
        self.page = Page()
        self.keys, self.variables = {}, {}
        self.settings = {"server": {}, "client": {}}
        self.printed = ""

    def read(self, name):
        """Do what a page says."""
        PAGES[name].prepare(self)
        self.page = PAGES[name]
        for path, kind, text in blocks(text_of(name)):
            if (name, kind) in ELSEWHERE:
                continue
            block = text.replace("7400", self.port)
            if path:
                (self.directory / path).write_text(self.here(block))
            elif kind == "python":
                exec(compile(block, name, "exec"), {})
                self.printed = self.capsys.readouterr().out
            elif kind == "text":
                assert_shown(block, self.printed)
            elif kind == "toml":
                self.set(tomllib.loads(self.filled(block)))
            elif kind == "ini":
                assert_drop_in(block)
            else:
                assert kind == "console", f"{name}: a block of kind {kind!r}"
                for machine, command, shown in steps(block):
                    self.follow(machine.replace("laptop", ""), command, shown)
        self.page.after(self)
        self.end()

    def set(self, tables):
        """Load a part of a settings file, with the earlier parts of the page."""
        is_client = tables.keys() & {"client", "policy"} or any(
            "identity" in keys for keys in tables.values()
        )
        role = "client" if is_client else "server"
        self.settings[role] |= {
            f"{section}.{key}": ",".join(value) if isinstance(value, list) else value
            for section, keys in tables.items()
            for key, value in keys.items()
        }
        load = load_client_settings if is_client else load_server_settings
        overrides = [f"{key}={value}" for key, value in self.settings[role].items()]
        load(SAMPLES / f"{role}.minimal.toml", environment={}, overrides=overrides)

    def here(self, text, *, is_command=False):
        """Return a text with the folders of this test."""
        place = str(self.directory)
        place = shlex.quote(place) if is_command else place
        return MACHINE.sub(lambda found: f"{place}/{found[1]}/", text)

    def filled(self, text):
        """Return a text with keys and fingerprints where it leaves them out."""
        return re.sub(
            r"(ed25519|sha256):(?:…|\.\.\.)",
            lambda found: self.keys.get(found[1], f"{found[1]}:58{'66' * 31}"),
            text,
        )

    def follow(self, machine, command, shown):
        """Do what the reader does before a command, and the command itself."""
        for pattern, action in self.page.before.items():
            if re.search(pattern, command):
                if callable(action):
                    action(self)
                else:
                    self.shell("", action)
        for pattern, instead in self.page.changes.items():
            command = re.sub(pattern, instead, command)
        for name, value in self.variables.items():
            command = command.replace(f"${name}", value)
        command = re.sub(r"^\S*/bin/secagg ", "secagg ", command)
        command = self.here(self.filled(command), is_command=True)
        # A part that cannot run here leaves the others.
        parts = [command] if is_not_run(command) else command.split(" && ")
        for pattern, start in self.page.beside.items():
            if re.search(pattern, command):
                start(self, command)
        *first, last = [each for each in parts if not is_not_run(each)] or [":"]
        for each in first:
            self.run(machine, each, "")
        self.run(machine, last, shown if last == parts[-1] else "")

    def run(self, machine, command, shown):
        if found := re.fullmatch(r"(\w+)=(\S+)( .*)?", command):
            self.variables[found[1]] = found[2]
            return
        is_ours = command.startswith("secagg ")
        words = shlex.split(command, comments=True) if is_ours else []
        serves = words[1:2] in (["server"], ["client"], ["two-aggregators"])
        if serves and "--show-settings" not in words:
            self.start(machine, words[1:], shown)
            return
        if self.has_clients:  # until then a server waits for them
            self.finish(machine)
        if is_ours:
            code = next(
                (c for each, c in self.page.codes.items() if re.search(each, command)),
                0,
            )
            said = self.call(machine, *words[1:], code=code)
            assert_shown(shown, said.out + said.err, said.err + said.out)
        else:
            assert_shown(shown, self.shell(machine, command))

    def call(self, machine, *words, code=0):
        """Run a command of secagg in this process; return what it has printed."""
        self.monkeypatch.chdir(self.directory / machine)
        self.capsys.readouterr()
        ended = main(list(words))
        said = self.capsys.readouterr()
        printed = said.out + said.err
        assert ended == code, f"{words} ends with {ended}\n{printed}"
        self.note(printed)
        return said

    def shell(self, machine, command):
        command = re.sub(r"^python ", f"{sys.executable} ", command)
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=self.directory / machine,
            env=self.programs.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        self.note(done.stdout)
        return done.stdout

    def note(self, printed):
        """Keep what was printed, as on a machine, and the last keys in it."""
        self.printed = printed.replace(f"{self.directory}/", "/")
        for kind, digits in re.findall(r"\b(ed25519|sha256):(\w{64})", printed):
            self.keys[kind] = f"{kind}:{digits}"

    def start(self, machine, words, shown):
        """Start a program; wait for what a server shows, or for a first line."""
        process = self.programs.start(*words, cwd=self.directory / machine)
        is_server = "client" not in words[:2]
        begun = re.compile(r"(?s).*listening on" if is_server else r"(?s).*\n")
        if is_server and shown:
            begun = pattern_of(shown)
        said, has_begun = [], threading.Event()

        def read():
            for line in process.stdout:
                said.append(line)
                if begun.match("".join(said)):
                    has_begun.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        ends = self.page.ends(words)
        self.running.append((machine, process, reader, said, ends, shown))
        if is_server or not ends:
            assert has_begun.wait(60), "".join(said)
            self.note("".join(said))
        self.has_clients |= not is_server

    def finish(self, machine):
        """Wait for what ends by itself on a machine, and look at what it prints."""
        # A server waits for its clients, and is looked at last.
        for program in [each for each in self.running[::-1] if each[0] == machine]:
            _, process, reader, said, ends, shown = program
            if not ends:
                continue
            self.running.remove(program)
            reader.join(60)
            assert not reader.is_alive(), "".join(said)
            assert process.wait(60) == 0, "".join(said)
            assert "zeros were given" not in "".join(said)
            if shown:
                assert_shown(shown, "".join(said))

    def stop(self, number=signal.SIGTERM):
        """Stop whatever runs until it is stopped."""
        for program in [each for each in self.running if not each[4]]:
            self.running.remove(program)
            _, process, reader, said, *_ = program
            process.send_signal(number)
            reader.join(60)
            assert process.wait(60) in (0, 128 + number, -number), "".join(said)

    def end(self):
        """Wait for all that ends by itself, and stop the rest."""
        for machine in sorted({each[0] for each in self.running}):
            self.finish(machine)
        self.stop()


def assert_drop_in(block):
    """A drop-in hands over the file of a setting that exists, under its name."""
    (name,) = re.findall(r"^LoadCredential=([\w.]+):/", block, re.MULTILINE)
    (section, key) = re.search(
        rf"^Environment=SECAGG_([A-Z]+)_([A-Z_]+)=%d/{re.escape(name)}$",
        block,
        re.MULTILINE,
    ).groups()
    full = tomllib.loads((SAMPLES / "server.full.toml").read_text())
    assert key.lower() in full[section.lower()]


# --- the pages ------------------------------------------------------------------------

QUICK = {
    "docs/enrolment.md": Page(
        readers.enrolling,
        changes={
            r"^scp (\S+) [\w.]+:": r"cp \1 ",
            r"^(secagg pki enrol revoke issuer) 17$": r"\1 1",
        },
        before={
            r"^secagg pki sign": "cp etc/secagg/tls/hospital-a.csr .",
            r"^secagg pki enrol sign": "cp identity/request.bin .",
        },
    ),
    "docs/backup.md": Page(
        readers.backing_up,
        before={
            r"state check --copy": readers.naming_the_copy,
            r"state check --config": readers.restoring,
        },
        codes={r"state check --config": 78},
    ),
    "docs/http-edge.md": Page(),
    "docs/phones.md": Page(),
}
LONG = {
    "docs/tutorial.md": Page(),
    "docs/train-from-the-shell.md": Page(
        before={"--update-with": readers.updating, "--tasks": readers.in_both},
        beside={"--tasks": readers.others},
        after=readers.joined_both,
    ),
    "docs/choosing-a-budget.md": Page(readers.claiming),
    "docs/choosing-a-graph.md": Page(),
    "docs/local-privacy.md": Page(),
    "docs/receipts.md": Page(readers.received),
    "docs/write-a-client.md": Page(),
    "docs/performance.md": Page(
        changes={
            "benchmarks/run.py": f"{ROOT}/benchmarks/run.py --tiny",
            "--clients 1000 --dimension 10000 --degree 64": "--clients 30 "
            "--dimension 100 --degree 6",
        }
    ),
    "deploy/README.md": Page(
        readers.deploying, changes={"<name of the machine>": "127.0.0.1"}, lasting="."
    ),
    "docs/operations.md": Page(
        readers.operating, changes={"sessions show 33": "sessions show 1"}
    ),
    "docs/two-aggregators.md": Page(
        readers.sharing,
        changes={
            r"--host \S+": "--host 127.0.0.1",
            "--leader ed25519:…": "--leader $LEADER",
            "--helper ed25519:…": "--helper $HELPER",
        },
        before={
            "two-aggregators helper": readers.helping,
            "two-aggregators leader": readers.leading,
            "two-aggregators client": readers.giving,
            "verify sums": readers.auditing,
        },
        beside={
            "two-aggregators client": lambda all_, command: all_.start(
                "client-2", shlex.split(command)[1:], ""
            )
        },
    ),
    "examples/sum_of_vectors/README.md": Page(
        readers.summing,
        before={"^KEY=": readers.anew},
        beside={r"^secagg client .*-2": readers.beside(1, 3)},
    ),
    "clients/jvm/README.md": Page(
        changes={"^make jvm": f"make -C {ROOT} -o .venv/.installed-run jvm"}
    ),
}
PAGES = QUICK | LONG


@pytest.fixture
def machines(tmp_path, unused_tcp_port_factory, capsys, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    # Programs of --exec are found as in an environment that is active.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    monkeypatch.setenv("PATH", path)
    place = tmp_path / "m"
    place.mkdir()
    with Programs(place) as programs:
        ports = unused_tcp_port_factory(), unused_tcp_port_factory()
        yield Machines(programs, ports, capsys, monkeypatch)


@pytest.mark.parametrize("page", QUICK)
def test_every_block_produces_the_output_on_its_page(page, machines):
    machines.read(page)


@pytest.mark.parametrize("page", LONG)
def test_every_block_of_a_longer_page_produces_its_output(page, machines):
    if "jvm" in page and shutil.which("javac") is None:
        pytest.skip("needs a Java development kit")
    machines.read(page)


def test_every_block_is_run_or_has_a_reason():
    found, used = [], set()
    for name, path in pages().items():
        for _, kind, block in blocks(path.read_text("utf-8")):
            if (name, kind) in ELSEWHERE:
                used.add((name, kind))
                continue
            is_listed = kind == "console" and all(
                is_not_run(command) for _, command, _ in steps(block)
            )
            if name not in PAGES and not is_listed:
                found.append(f"{name}: {block.splitlines()[0]}")
    assert not found, "give each a row in QUICK, LONG, ELSEWHERE or NOT_RUN"
    assert used == set(ELSEWHERE)


@pytest.mark.parametrize(("page", "kind"), ELSEWHERE)
def test_a_block_that_another_test_runs_is_named_there(page, kind):
    place, _, name = ELSEWHERE[page, kind].partition("::")
    text = (ROOT / "tests" / place).read_text("utf-8")
    assert f"def {name}(" in text or f"test('{name}'" in text
    assert Path(page).name in text or Path(page).parent.name in text


def test_every_excluded_command_occurs_on_a_page():
    text = [
        command
        for path in pages().values()
        for _, kind, block in blocks(path.read_text("utf-8"))
        if kind == "console"
        for _, command, _ in steps(block)
    ]
    for each in NOT_RUN:
        assert any(
            re.fullmatch(each, re.sub(r"\s+# .*", "", one), re.DOTALL) for one in text
        )


def test_a_shown_line_that_is_not_printed_is_detected():
    printed = "first  1.5\nsecond\nthird -2\n"
    assert pattern_of("first 2.25\n…\nthird 3\n").match(printed)
    assert pattern_of("…\nthird 3\n").match(printed)
    assert pattern_of("[1.5 -2.5]\n").match("[ 18.1  95. ]\n")
    assert pattern_of("[1.5 -2.5]\n").match("[ 58. -2.00e+01 ]\n")
    assert not pattern_of("first 2\nthird 3\n").match(printed)
    assert not pattern_of("…\nfourth\n").match(printed)


def test_the_blocks_about_postgresql_do_what_the_page_says(machines, postgres_url):
    readers.with_certificates(machines)
    (block,) = [
        each
        for _, _, each in blocks(text_of("docs/operations.md"))
        if "createdb" in each
    ]
    of_fixture = r"postgresql://(\w+):@/\w+\?host=(.*)"
    user, place = re.fullmatch(of_fixture, postgres_url).groups()
    machines.programs.environment |= {"PGUSER": user, "PGHOST": place}
    pip, create, serve = [command for _, command, _ in steps(block)]
    assert is_not_run(pip)
    machines.shell("", create)
    address = f"postgresql://{user}@/secagg?host={place}"
    words = re.sub(r"'postgresql://\S+'", address, serve)
    machines.start("", shlex.split(words)[1:], "")
    machines.stop()
