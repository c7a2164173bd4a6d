"""The page about Flower: its blocks run, over the loop, Ray and real processes."""

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PrivateFormat,
    PublicFormat,
)
from flwr.app import Context, RecordDict
from secagg_testing.loop_grid import LoopGrid

from secagg.integrations.flower import secagg_mod
from secagg.integrations.flower.terms import terms_of_simulation
from secagg.pki.certificate_authority import CertificateAuthority

PAGE = (Path(__file__).parents[2] / "docs" / "flower.md").read_text("utf-8")
CLIENT, SERVER = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(TERMS,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
NODES = 4
SUM = r"sum of 4 vectors \(session \d+\): .*; epsilon 8, delta 1e-05"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}
# Flower's processes: imports alone take a minute on a busy machine. Their rounds have
# no shorter limit, since a round that is over too early would only hide the slow start.
SECONDS = 220
PATIENT = SERVER.replace("rounds=2,", f"rounds=2, stage_seconds={SECONDS},", 1)


def apps(directory=None):
    """Run the blocks of the page; return both apps."""
    made = []
    mod = (
        "secagg_mod()" if directory is None else f"secagg_mod(simulation={directory!r})"
    )
    for block in (CLIENT.replace("secagg_mod()", mod), SERVER):
        names = {}
        exec(compile(block, "flower.md", "exec"), names)
        made.append(names["app"])
    return made


def test_the_diff_on_the_page_matches_its_blocks():
    added = re.findall(r"^\+ *(.*)$", PAGE, re.MULTILINE)
    assert len(added) == 3
    assert added[0] in CLIENT
    packed = re.sub(r"#.*|\s", "", SERVER).replace(",)", ")")
    task, start = (re.sub(r"\s", "", each) for each in added[1:])
    assert task in packed
    secure = "SecureGrid(grid,task,strategy)"
    assert start.replace(secure, "secure") in packed.replace(f"secure={secure}", "")
    assert f"secure={secure}" in packed


def test_the_blocks_of_the_page_run_over_the_loop_grid(home, capsys):
    (home / "terms.toml").write_text(TERMS)
    client, server = apps(str(home))
    grid = LoopGrid(client, NODES, lambda node: {"partition-id": node % 10})
    server(grid, Context(1, 0, {}, RecordDict(), {}))
    shown = capsys.readouterr().out
    assert len(re.findall(SUM, shown)) == 2


def test_the_terms_file_on_the_page_is_valid(home):
    (home / "terms.toml").write_text(TERMS)
    terms = terms_of_simulation(home, "a")
    assert terms.tasks == {"digits"}
    assert terms.privacy_limits.max_epsilon == 8.0
    assert secagg_mod(simulation=home).simulation == home


def test_a_node_loads_no_planner_and_no_server():
    """A process for each message pays for each of its imports."""
    script = (
        "import sys\n"
        "from secagg.integrations.flower import secagg_mod\n"
        "secagg_mod()\n"
        "print(*(n for n in sys.modules if n.startswith(('secagg', 'dpnoise'))))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = ran.stdout.split()
    assert "secagg.integrations.flower.mod" in loaded
    unwanted = ("secagg.server", "secagg.pki", "secagg.transport", "dpnoise.planning")
    assert not [name for name in loaded if name.startswith(unwanted)]


# --- with Ray -------------------------------------------------------------------------

SIMULATION = """
import sys
from pathlib import Path
from flwr.simulation import run_simulation

def app(block):
    names = {}
    exec(compile(Path(block).read_text(), block, "exec"), names)
    return names["app"]

if __name__ == "__main__":
    run_simulation(
        app("server_app.py"),
        app("client_app.py"),
        num_supernodes=4,
        backend_config={
            "init_args": {"num_cpus": 2, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
        },
    )
"""


@pytest.mark.services
def test_the_blocks_of_the_page_run_with_ray(tmp_path):
    (tmp_path / "terms.toml").write_text(TERMS)
    mod = f"secagg_mod(simulation={str(tmp_path)!r})"
    (tmp_path / "client_app.py").write_text(CLIENT.replace("secagg_mod()", mod))
    (tmp_path / "server_app.py").write_text(PATIENT)
    (tmp_path / "simulation.py").write_text(SIMULATION)
    ran = subprocess.run(
        [sys.executable, "simulation.py"],
        cwd=tmp_path,
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert len(re.findall(SUM, ran.stdout)) == 2, ran.stderr
    assert len(list((tmp_path / "state").iterdir())) == NODES


# --- with Flower's processes ----------------------------------------------------------

PROJECT = """
[project]
name = "digits"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "secagg"
[tool.flwr.app.components]
serverapp = "digits.server_app:app"
clientapp = "digits.client_app:app"
[tool.flwr.app.config]
"""


def free_ports(count):
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            taken = stack.enter_context(socket.socket())
            taken.bind(("127.0.0.1", 0))
            found.append(taken.getsockname()[1])
        return found


class Program:
    """One of Flower's programs with all that it starts, and what it prints."""

    def __init__(self, *words, env):
        path = Path(sys.executable).with_name(words[0])
        self._lines, self.shown = queue.Queue(), []
        self._process = subprocess.Popen(
            [path, *words[1:]],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            self.shown.append(line)
            self._lines.put(line)

    def wait_for(self, words, count):
        """Return when so many lines with these words were printed."""
        while count:
            try:
                count -= words in self._lines.get(timeout=SECONDS)
            except queue.Empty:
                pytest.fail("".join(self.shown))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """End it, and whatever it has started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        self._reader.join()
        self._process.stdout.close()


def node_key(place):
    """Make the key of a SuperNode; return the file of its public half."""
    key = ec.generate_private_key(ec.SECP384R1())
    (place / "key").write_bytes(
        key.private_bytes(
            Encoding.PEM, PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
    )
    (place / "key.pub").write_bytes(
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    )
    return place / "key.pub"


@pytest.mark.services
def test_the_blocks_of_the_page_run_in_the_deployment_runtime(tmp_path):
    """With the links that the page asks for: TLS, and nodes that prove a key."""
    app = tmp_path / "app"
    (app / "digits").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "digits" / "__init__.py").touch()
    (app / "digits" / "client_app.py").write_text(CLIENT)
    # A process per message: on a busy machine a round takes two minutes.
    one_round = PATIENT.replace("num_rounds=2", "num_rounds=1")
    (app / "digits" / "server_app.py").write_text(one_round)
    link, *ports = free_ports(1 + NODES)
    home, keys = tmp_path / "home", tmp_path / "keys"
    home.mkdir()
    authority = CertificateAuthority.create("example.org")
    authority.issued().write(keys, "ca")
    authority.issue_server("superlink", ["127.0.0.1"]).write(keys, "server")
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "here"\n'
        f'[superlink.here]\naddress = "127.0.0.1:{link}"\n'
        f'root-certificates = "{keys / "ca.pem"}"\n'
    )
    env = os.environ | QUIET | {"FLWR_HOME": str(home)}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    command = Path(sys.executable).with_name("flwr")

    def flwr(*words):
        return subprocess.run(
            [command, *words],
            env=env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    with ExitStack() as stack:
        server = stack.enter_context(
            Program(
                *("flower-superlink", "--port", str(link), "--enable-supernode-auth"),
                *("--ssl-ca-certfile", str(keys / "ca.pem")),
                *("--ssl-certfile", str(keys / "server.pem")),
                *("--ssl-keyfile", str(keys / "server.key")),
                "--disable-runtime-dependency-installation",
                env=env,
            )
        )
        server.wait_for("FastAPI lifespan: startup", 1)
        programs = [server]
        for number, port in enumerate(ports):
            place = tmp_path / f"node-{number}"
            place.mkdir()
            own = TERMS.replace("/var/lib/secagg-node", str(place / "state"))
            own = own.replace("/srv/secagg-node.mark", str(place / "mark"))
            (place / "terms.toml").write_text(own)
            registered = flwr("supernode", "register", str(node_key(place)), "here")
            assert registered.returncode == 0, registered.stdout + registered.stderr
            node = Program(
                *("flower-supernode", "--port", str(port)),
                *("--superlink", f"127.0.0.1:{link}"),
                *("--root-certificates", str(keys / "ca.pem")),
                *("--auth-supernode-private-key", str(place / "key")),
                "--node-config",
                f'secagg-terms="{place / "terms.toml"}" partition-id={number}',
                env=env,
            )
            programs.append(stack.enter_context(node))
        server.wait_for("Activated node_id", NODES)
        ran = flwr("run", str(app), "here", "--stream")
    parts = [ran.stdout, ran.stderr, *("".join(each.shown) for each in programs)]
    shown = "\n".join(parts)
    assert len(set(re.findall(SUM, shown))) == 1, shown
    for number in range(NODES):
        assert (tmp_path / f"node-{number}" / "state").is_dir()
        assert (tmp_path / f"node-{number}" / "mark").exists()
