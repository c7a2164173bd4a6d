"""Every block of the pages runs, and prints what the page shows.

A line `machine$ command` runs in the directory of that machine, one below a directory
of the test's own; without a machine in that directory itself. `/etc` and its like are
folders there too. Lines below a command are what it prints: numbers may differ, and a
line of dots stands for any lines. A server and a client are processes; all other
commands of secagg run in this one, which has loaded the libraries already.

A `Page` says what its reader has and does beside its commands. `NOT_RUN` lists the
commands that need what no test may have, `ELSEWHERE` the blocks that other tests run.
"""

import asyncio
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

import numpy as np
import pytest
from secagg_testing.programs import Programs

from secagg.cli import main
from secagg.config import load_client_settings, load_server_settings
from secagg.storage.budget_ledger import BudgetKey, Claim, ClaimAdversary
from secagg.storage.changes import PutClaim, Touch
from secagg.storage.open_store import open_state

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "deploy" / "config"
EXAMPLE = ROOT / "examples" / "sum_of_vectors"
EXAMPLE_PAGE = "examples/sum_of_vectors/README.md"
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
    r"make [\w-]+": "downloads tools; architecture/test_documents.py: the targets exist",
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
    "test_the_blocks_of_the_page_run_over_a_loop",
    ("docs/flower.md", "diff"): "flower/test_flower_page.py::"
    "test_the_diff_on_the_page_is_what_its_blocks_say",
    ("docs/flower.md", "toml"): "flower/test_flower_page.py::"
    "test_the_file_on_the_page_is_one_of_a_node",
    ("docs/phones.md", "python"): "unit/secagg/client/test_visit.py::"
    "test_the_program_on_the_page_is_a_visit",
    ("docs/states.md", "mermaid"): "architecture/test_protocol_documents.py::"
    "test_the_state_diagrams_are_those_of_the_tables",
    ("docs/transport.md", "ini"): "unit/secagg/transport/test_transport_page.py::"
    "test_openssl_issues_a_certificate_with_the_names_of_the_page",
    ("clients/typescript/README.md", "ts"): "../clients/typescript/tests/"
    "readme.test.ts::the blocks of the README compile",
    ("docs/write-a-client.md", "json"): "unit/secagg/conformance/test_kit.py::"
    "test_the_page_shows_an_answer_to_hello_that_is_taken",
    ("examples/mobile_backend/README.md", "console"): "integration/test_examples.py::"
    "test_phones_that_are_killed_and_lose_the_network_give_their_sums",
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
        for path, kind, block in blocks(text_of(name)):
            if (name, kind) in ELSEWHERE:
                continue
            block = block.replace("7400", self.port)
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

    def here(self, text):
        """Return a text with the folders of this test."""
        return MACHINE.sub(rf"{self.directory}/\1/", text)

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
        command = self.here(self.filled(command))
        command = re.sub(r"^\S*/bin/secagg ", "secagg ", command)
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
        """Start a program; wait for what is shown of a server, or for its first line."""
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
        """Wait for what ends by itself on a machine, and look at what it has printed."""
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


# --- what the readers of the pages bring along ----------------------------------------

SERVER = """
[server]
listen = "127.0.0.1:{port}"
state_dir = "state"
rollback_mark = "the.mark"
[tls]
ca = "pki/ca.pem"
certificate = "pki/server.pem"
key = "pki/server.key"
[task]
id = "beds"
[vector]
dimension = 4
[cohort]
min_clients = 3
max_clients = 3
min_survivors = 3
[noise]
mechanism = "skellam"
epsilon = 4.0
delta = 1e-6
l2_clip = 30.0
"""
CLIENT = """
[client]
server = "127.0.0.1:{port}"
task = "beds"
[tls]
ca = "pki/ca.pem"
certificate = "pki/client-1.pem"
key = "pki/client-1.key"
[policy]
min_clients = 3
min_survivors = 3
max_epsilon = 4.0
max_delta = 1e-6
"""


def with_certificates(machines):
    """Issue what a server and three clients show, and write their settings."""
    machines.call("", "pki", "init", "pki", "--clients", "3", "--host", "127.0.0.1")
    for name, text in (("server.toml", SERVER), ("client.toml", CLIENT)):
        (machines.directory / name).write_text(text.format(port=machines.port))


def enrolling(machines):
    for folder in ("etc/secagg", "usr/local/bin"):
        (machines.directory / folder).mkdir(parents=True)
    fetch = machines.directory / "usr/local/bin/fetch-certificate"
    fetch.write_text("#!/bin/sh\n")
    fetch.chmod(0o700)
    settings = CLIENT.format(port=machines.port)
    for written, here in (
        ("pki/client-1.pem", "hospital-a.pem"),
        ("pki/client-1.key", "etc/secagg/tls/hospital-a.key"),
    ):
        settings = settings.replace(written, here)
    (machines.directory / "client.toml").write_text(settings)
    machines.call("", "pki", "ca", "pki", "--trust-domain", "example.org")


def backing_up(machines):
    place = machines.directory
    for folder in ("etc/systemd/system", "run/systemd/system", "backup", "var/lib"):
        (place / folder).mkdir(parents=True)
    (place / "var/lib/secagg").mkdir()
    machines.call("", "pki", "init", "etc/secagg/pki", "--host", "127.0.0.1")
    text = SERVER.format(port=machines.port).replace('"pki/', '"/etc/secagg/pki/')
    text = text.replace('"state"', '"/var/lib/secagg/server"')
    text = text.replace('"the.mark"', '"/var/lib/secagg/server.mark"')
    for path in ("server.toml", "etc/secagg/server.toml"):
        (place / path).write_text(machines.here(text))
    use_state(machines)


def use_state(machines):
    """Have the state that the sample settings name used once, or once more."""

    async def run():
        state = machines.directory / "var/lib/secagg/server"
        mark = state.with_name("server.mark")
        store = await open_state(state, mark=mark)
        await store.commit(Touch())
        await store.close()

    asyncio.run(run())


def restoring(machines):
    """Go on after the backup was taken, lose the state, and copy the old one back."""
    use_state(machines)
    state = machines.directory / "var/lib/secagg/server"
    shutil.rmtree(state)
    (copy,) = (machines.directory / "backup").iterdir()
    shutil.copytree(copy, state)


def deploying(machines):
    (machines.directory / "etc/systemd/system").mkdir(parents=True)
    (machines.directory / "client.toml").write_text(CLIENT.format(port=machines.port))


def claiming(machines):
    """Have a client whose data a task has a claim on."""
    with_certificates(machines)
    place = machines.directory / "var/lib/secagg/data"
    text = CLIENT.format(port=machines.port)
    (total,) = re.findall(r"\n(data = .*?)```", text_of("docs/choosing-a-budget.md"), re.S)
    (machines.directory / "client.toml").write_text(text + machines.here(total))
    claim = Claim(
        data="patients-2027",
        holder=bytes(16),
        budget=BudgetKey(trust_domain="o", aggregator="sums-1", task="task-a"),
        noise_digest=bytes(32),
        against=ClaimAdversary.SERVER,
        epsilon=4.0,
        delta=1e-6,
        shift=0.83786,  # of epsilon 4 at delta 1e-6
        distance=0.0,
        added_delta=0.0,
    )

    async def run():
        place.parent.mkdir(parents=True)
        mark = machines.directory / "data.mark"
        store = await open_state(place, mark=mark)
        assert await store.commit(PutClaim(claim, after=0))
        await store.close()
        mark = machines.directory / "client.mark"
        await (await open_state(machines.directory / "client-state", mark=mark)).close()

    asyncio.run(run())


def summing(machines):
    for path in sorted(EXAMPLE.iterdir()):
        if path.suffix in {".toml", ".py"}:
            shutil.copy(path, machines.directory)
            text = path.read_text().replace("7400", machines.port)
            (machines.directory / path.name).write_text(text)


def anew(machines):
    """Begin in another copy of the directory of the example."""
    machines.finish("")
    machines.has_clients = False
    for name in ("pki", "server-state", "sums"):
        shutil.rmtree(machines.directory / name)
    for path in machines.directory.glob("*state*"):
        path.unlink() if path.is_file() else shutil.rmtree(path)
    shutil.rmtree(os.environ["XDG_STATE_HOME"])  # marks belong to a directory
    machines.call("", "pki", "init", "pki", "--clients", "3", "--host", "127.0.0.1")
    machines.call("", "pki", "enrol", "revoke", "pki/issuer")
    with (machines.directory / "server.toml").open("a") as file:
        file.write('[enrolment]\nrevocations = "pki/issuer/revocations.bin"\n')


def received(machines):
    """Have the receipts of an enrolled session, under the names of the page."""
    machines.read(EXAMPLE_PAGE)
    place = machines.directory
    for name in ("alice", "bob"):
        number = 1 + ("alice", "bob").index(name)
        shutil.copy(
            place / f"received-{number}.receipt.bin", place / f"{name}.receipt.bin"
        )
    shutil.copy(place / "sums/receipt-1.bin", place)
    shutil.copy(place / "pki/issuer/revocations.bin", place)


def beside(*numbers):
    """Return what starts the clients of the other terminals, too."""

    def start(machines, command):
        for number in numbers:
            own = re.sub(r"(-)\d(?=[./-])", rf"\g<1>{number}", command)
            machines.start("", shlex.split(own)[1:], "")

    return start


def operating(machines):
    """Have an aggregator that was restored while its session waited for clients."""
    with_certificates(machines)
    place = machines.directory
    text = (place / "server.toml").read_text()
    (place / "backup.toml").write_text(
        text.replace('"state"', '"backup"').replace("the.mark", "backup.mark")
    )
    task = text[text.index("[task]") :].replace("beds", "digits")
    (place / "digits.toml").write_text(task)
    client = (place / "client.toml").read_text().replace("client-1.", "client-2.")
    (place / "client-2.toml").write_text(f"{client}\n[client]\nstate_dir = 'two'")
    machines.start("", ["server", "--config", "server.toml"], "")
    joins(machines, "client.toml")
    server = machines.running[0][1]
    server.send_signal(signal.SIGSTOP)
    sockets = shutil.ignore_patterns("*.sock")
    shutil.copytree(place / "state", place / "backup", ignore=sockets)
    server.send_signal(signal.SIGCONT)
    joins(machines, "client.toml", "tls.certificate=pki/client-2.pem", "tls.key=pki/client-2.key", "client.state_dir=two")
    machines.stop(signal.SIGKILL)
    shutil.rmtree(place / "state")
    shutil.copytree(place / "backup", place / "state")
    machines.start("", ["server", "--config", "server.toml", "--restored"], "")


def joins(machines, config, *changes):
    """Have a client join, and wait until it has."""
    words = ["client", "--config", config, "--input", "x.npy"]
    np.save(machines.directory / "x.npy", np.ones(4))
    process = machines.programs.start(
        *words, *(f"--set={each}" for each in changes), cwd=machines.directory
    )
    for line in process.stdout:
        if "joined" in line or "joining" in line:
            break
    process.kill()


def sharing(machines):
    for name in ("leader", "helper", "client", "client-2", "auditor"):
        (machines.directory / name).mkdir()


def configure(machines, *roles):
    """Write the settings of some of three parties, with what the others have told."""
    for role in roles:
        text = (SAMPLES / "two-aggregators" / f"{role}.toml").read_text()
        for given, here in (
            ("0.0.0.0:7400", machines.places.get(role, "")),
            ("leader.example.org:7400", machines.places["leader"]),
            ("helper.example.net:7400", machines.places["helper"]),
            ("/etc/secagg/pki/", "pki/"),
            ("/etc/secagg/leader/", "../leader/pki/"),
            ("/etc/secagg/helper/", "../helper/pki/"),
            ("/var/lib/secagg/", ""),
            ("min_survivors = 500", "min_survivors = 2"),
            ("max_clients = 1000\n", "max_clients = 2\n"),
        ):
            text = text.replace(given, here)
        for name in ("LEADER", "HELPER"):
            of = text.index(f"[{name.lower()}]") if f"[{name.lower()}]" in text else None
            key = machines.variables.get(name)
            if of is not None and key is not None:
                text = text[:of] + text[of:].replace("ed25519:...", key, 1)
        (machines.directory / role / f"{role}.toml").write_text(text)


def helping(machines):
    for name in ("leader", "helper"):
        machines.call(name, "pki", "client", "pki", "client-2")
    configure(machines, "helper")


def leading(machines):
    machines.variables["HELPER"] = machines.keys["ed25519"]
    configure(machines, "leader")


def giving(machines):
    """Have the vectors of two clients, once the first vector was given a second one."""
    machines.finish("client")
    machines.finish("client-2")
    if "LEADER" in machines.variables:
        return
    machines.variables["LEADER"] = machines.keys["ed25519"]
    configure(machines, "client")
    text = (machines.directory / "client/client.toml").read_text()
    (machines.directory / "client-2/client.toml").write_text(
        text.replace("/client-1.", "/client-2.")
    )
    for name in ("client", "client-2"):
        np.save(machines.directory / name / "x.npy", np.full(1000, 0.01))


def auditing(machines):
    machines.finish("client")
    machines.finish("client-2")
    shutil.copytree(machines.directory / "leader/sums", machines.directory / "auditor/sums")


UPDATE = """
import sys, numpy
model, mean = numpy.load(sys.argv[1]), numpy.load(sys.argv[2])
numpy.savez(sys.argv[3], **{name: model[name] + mean[name] for name in model})
"""


def begin_again(machines):
    """Wait for the hospitals and their server, and let them begin again."""
    for place in sorted(machines.directory.glob("hospital-?")):
        machines.finish(place.name)
        shutil.rmtree(place / "client-state")
    machines.finish("server")
    machines.has_clients = False
    for name in ("server-state", "sums"):
        shutil.rmtree(machines.directory / "server" / name)
    shutil.rmtree(os.environ["XDG_STATE_HOME"])


def updating(machines):
    begin_again(machines)
    (machines.directory / "server/update.py").write_text(UPDATE)


def in_both(machines):
    """Have a server of both tasks, and each hospital's vector of the second."""
    server = machines.directory / "server"
    train = "secagg client --config client.toml --exec".split()[1:]
    for number in (1, 2, 3):
        words = [*train, "python train.py {payload} {model}"]
        machines.start(f"hospital-{number}", words, "")
    machines.finish("server")
    assert (server / "sums/model-2.npz").exists()
    begin_again(machines)
    (server / "tasks").mkdir()
    text = SERVER.format(port=machines.port)
    (server / "tasks/beds.toml").write_text(text[text.index("[task]") :])
    changes = ("server.tasks_dir=tasks", "task.payload=model.npz")
    words = ["server", "--config", "server.toml", *(f"--set={c}" for c in changes)]
    machines.start("server", words, "")
    for number in (1, 2, 3):
        place = machines.directory / f"hospital-{number}"
        settings = (place / "client.toml").read_text()
        (place / "client.toml").write_text(
            settings.replace("[client]", '[client]\naggregator = "aggregator"')
        )
        for session in (1, 2):
            np.save(place / f"beds-{session}.npy", np.ones(4))
        if number > 1:
            shutil.copy(machines.directory / "hospital-1/tasks.toml", place)


def others(machines, command):
    for number in (2, 3):
        machines.start(f"hospital-{number}", shlex.split(command)[1:], "")


def joined_both(machines):
    for place in sorted(machines.directory.glob("hospital-?")):
        machines.finish(place.name)
        assert (place / "beds-sum-1.npy").exists()


QUICK = {
    "docs/enrolment.md": Page(
        enrolling,
        changes={
            r"^scp (\S+) [\w.]+:": r"cp \1 ",
            r"^(secagg pki enrol revoke issuer) 17$": r"\1 1",
        },
        before={
            r"^secagg pki sign": "cp etc/secagg/tls/hospital-a.csr .",
            r"^secagg client": "cp pki/hospital-a.pem . || true",
            r"^secagg pki enrol sign": "cp identity/request.bin .",
        },
    ),
    "docs/backup.md": Page(
        backing_up,
        before={
            r"state check --copy": "sed s#/var/lib/secagg/server\\\"#/$(ls -d backup/*)\\\"# "
            "server.toml > backup.toml",
            r"state check --config": restoring,
        },
        codes={r"state check --config": 78},
    ),
    "docs/http-edge.md": Page(),
    "docs/phones.md": Page(),
}
LONG = {
    "docs/tutorial.md": Page(),
    "docs/train-from-the-shell.md": Page(
        before={"--update-with": updating, "--tasks": in_both},
        beside={"--tasks": others},
        after=joined_both,
    ),
    "docs/choosing-a-budget.md": Page(claiming),
    "docs/choosing-a-graph.md": Page(),
    "docs/local-privacy.md": Page(),
    "docs/receipts.md": Page(received),
    "docs/write-a-client.md": Page(),
    "docs/performance.md": Page(
        changes={
            "benchmarks/run.py": f"{ROOT}/benchmarks/run.py --tiny",
            "--clients 1000 --dimension 10000 --degree 64": "--clients 30 "
            "--dimension 100 --degree 6",
        }
    ),
    "deploy/README.md": Page(
        deploying, changes={"<name of the machine>": "127.0.0.1"}, lasting="."
    ),
    "docs/operations.md": Page(
        operating, changes={"sessions show 33": "sessions show 1"}
    ),
    "docs/two-aggregators.md": Page(
        sharing,
        changes={
            r"--host \S+": "--host 127.0.0.1",
            "--leader ed25519:… --helper ed25519:…": "--leader $LEADER --helper $HELPER",
        },
        before={
            "two-aggregators helper": helping,
            "two-aggregators leader": leading,
            "two-aggregators client": giving,
            "auditor|verify sums": auditing,
        },
        beside={
            "two-aggregators client": lambda all_, command: all_.start(
                "client-2", shlex.split(command)[1:], ""
            )
        },
    ),
    "examples/sum_of_vectors/README.md": Page(
        summing,
        before={"^KEY=": anew},
        beside={r"^secagg client .*-2": beside(1, 3)},
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
def test_every_block_does_what_the_page_says(page, machines):
    machines.read(page)


@pytest.mark.parametrize("page", LONG)
def test_every_block_of_a_longer_page_does_what_the_page_says(page, machines):
    machines.read(page)


def test_every_block_is_run_or_has_a_reason():
    found, used = [], set()
    for name, path in pages().items():
        for _, kind, block in blocks(path.read_text("utf-8")):
            if (name, kind) in ELSEWHERE:
                used.add((name, kind))
                continue
            commands = [command for _, command, _ in steps(block)] if kind == "console" else []
            is_listed = commands and all(map(is_not_run, commands))
            if name not in PAGES and not is_listed:
                found.append(f"{name}: {block.splitlines()[0]}")
    assert not found
    assert used == set(ELSEWHERE)


@pytest.mark.parametrize(("page", "kind"), ELSEWHERE)
def test_a_block_that_another_test_runs_is_named_there(page, kind):
    place, _, name = ELSEWHERE[page, kind].partition("::")
    text = (ROOT / "tests" / place).read_text("utf-8")
    assert f"def {name}(" in text or f"test('{name}'" in text
    assert Path(page).name in text or Path(page).parent.name in text


def test_every_row_of_what_is_not_run_is_on_a_page():
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


def test_a_shown_line_that_is_not_printed_is_noticed():
    printed = "first  1.5\nsecond\nthird -2\n"
    assert pattern_of("first 2.25\n…\nthird 3\n").match(printed)
    assert pattern_of("…\nthird 3\n").match(printed)
    assert pattern_of("[1.5 -2.5]\n").match("[ 18.1  95. ]\n")
    assert pattern_of("[1.5 -2.5]\n").match("[ 58. -2.00e+01 ]\n")
    assert not pattern_of("first 2\nthird 3\n").match(printed)
    assert not pattern_of("…\nfourth\n").match(printed)


def test_the_blocks_about_postgresql_do_what_the_page_says(machines, postgres_url):
    with_certificates(machines)
    (block,) = [
        each
        for _, _, each in blocks(text_of("docs/operations.md"))
        if "createdb" in each
    ]
    user, place = re.fullmatch(r"postgresql://(\w+):@/\w+\?host=(.*)", postgres_url).groups()
    machines.programs.environment |= {"PGUSER": user, "PGHOST": place}
    pip, create, serve = [command for _, command, _ in steps(block)]
    assert is_not_run(pip)
    machines.shell("", create)
    address = f"postgresql://{user}@/secagg?host={place}"
    words = re.sub(r"'postgresql://\S+'", address, serve)
    machines.start("", shlex.split(words)[1:], "")
    machines.stop()
