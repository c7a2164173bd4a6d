"""Who may import whom, and that every promised name exists."""

import ast
import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import cryptography
import numpy as np
import pytest

import dpnoise
import secagg
from tests.cases import each_of

ROOT = Path(__file__).parents[2]
GENERATED = "secagg.v1"


def modules():
    for package in (secagg, dpnoise):
        yield package.__name__
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not found.name.startswith(GENERATED) and "__main__" not in found.name:
                yield found.name


# Public modules beside the table of `secagg`.
LISTED = {"secagg.advanced", "secagg.blocking"}


# Modules that need an extra, and what is imported from it.
NEEDS = {
    "secagg.server.engine.dask": "distributed",
    "secagg.server.http_edge.protocol": "uvicorn",
    "secagg.integrations.flower": "flwr",
    "secagg.integrations.flower.grid": "flwr",
    "secagg.integrations.flower.mod": "flwr",
    "secagg.integrations.flower.wire": "flwr",
}


@each_of(sorted(modules()))
def test_public_names_are_listed_by_packages_and_all_exist(name):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        return  # needs an extra
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", ())
    assert not exported or hasattr(module, "__path__") or name in LISTED
    for each in exported:
        assert hasattr(module, each), f"{name}.{each}"


def sources(pattern="*.py", word=""):
    """Yield every file of that name which has a word in it, with its syntax tree."""
    for package in ("secagg", "dpnoise", "tests", "benchmarks", "docs", "examples"):
        for path in sorted((ROOT / package).rglob(pattern)):
            text = path.read_text()
            if word in text:
                yield path, ast.parse(text)


def test_only_packages_list_their_names():
    listed = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for path, tree in sources(word="__all__")
        if path.name != "__init__.py"
        for node in tree.body
        for named in ast.walk(node)
        if isinstance(named, ast.Name | ast.alias)
        and "__all__" in (getattr(named, "id", ""), getattr(named, "name", ""))
    }
    assert listed == LISTED


def test_a_package_loads_no_module_of_its_own_before_it_is_used():
    eager = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for path, tree in sources("__init__.py")
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        and node.module.split(".")[0] in {"secagg", "dpnoise", "secagg_testing"}
        and node.module != "dpnoise.lazy_names"
    }
    assert not eager


def test_the_import_contracts_hold():
    program = Path(sys.executable).parent / "lint-imports"
    if not program.exists():
        pytest.skip("import-linter is not installed")
    done = subprocess.run(
        [program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_every_module_of_the_server_has_one_of_nine_layers():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (layers,) = (
        each["layers"]
        for each in settings["tool"]["importlinter"]["contracts"]
        if each["name"] == "secagg.server: nine layers"
    )
    assert len(layers) == 9
    placed = re.findall(r"secagg\.server\.[\w.]+", " ".join(layers))
    for name in modules():
        if not name.startswith("secagg.server."):
            continue
        places = [each for each in placed if f"{name}.".startswith(f"{each}.")]
        holds_others = any(each.startswith(f"{name}.") for each in placed)
        assert len(places) == (0 if holds_others else 1), name


def calls_of(path: Path, name: str) -> bool:
    text = path.read_text()
    return name in text and any(
        isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id == name)
            or (isinstance(node.func, ast.Attribute) and node.func.attr == name)
        )
        for node in ast.walk(ast.parse(text))
    )


def test_only_distributed_dp_constructs_noisy_vectors():
    makers = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "secagg").rglob("*.py")
        if calls_of(path, "NoisyVector") and "testing" not in path.parts
    }
    assert makers <= {"secagg/distributed_dp/task.py"}


def test_only_the_gate_checks_offers_to_clients():
    """The total does once more when it commits."""
    judges = {
        path.relative_to(ROOT / "secagg").as_posix()
        for path in (ROOT / "secagg").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "secagg.client.gate"
        if any(each.name.startswith("check_") for each in node.names)
    }
    assert judges == {"client/total_ledger.py", "two_aggregators/gate.py"}


def loaded_by(words, heavy):
    """Return which of these libraries one command has loaded at its end."""
    script = (
        f"import sys; from secagg.cli import main; main({words!r}); "
        f"sys.exit(','.join(sorted({heavy!r} & set(sys.modules))) or 0)"
    )
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )


def test_help_imports_no_heavy_library():
    heavy = {"numpy", "grpc", "cryptography", "nacl", "sqlite3", "matplotlib"}
    done = loaded_by(["--help"], heavy | {"sklearn", "scipy", "dpnoise.errors"})
    assert done.returncode == 0, done.stderr


def test_a_call_to_an_aggregator_loads_neither_its_server_nor_its_noise(tmp_path):
    settings = tmp_path / "server.toml"
    tls = "".join(f'{name} = "x"\n' for name in ("ca", "certificate", "key"))
    settings.write_text(f'[server]\nstate_dir = "{tmp_path}"\n[tls]\n{tls}')
    done = loaded_by(
        ["status", "--config", str(settings)],
        {"grpc", "google.protobuf", "dpnoise.errors", "secagg.server.server"},
    )
    assert done.returncode == 0, done.stderr
    assert "no state exists" in done.stderr


CLIENT = """
import sys
import numpy as np
import secagg
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.noise_terms import NoiseSecrets

offer = sys.stdin.buffer.read()
with secagg.StepClient(
    "ann",
    aggregator="hub",
    tasks=["sums"],
    privacy_limits=secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-6),
    state_dir=None,
) as ann:
    ann.check_offer(offer)
    assert ann.step(offer).messages
descriptor = SessionDescriptor.decode(offer)
task = NoisyTask.of_session(descriptor)
secrets = NoiseSecrets(3, b"", SecretBytes(bytes(32)), (SecretBytes(bytes(32)),) * 4)
task.encode(np.ones(4), session_id=descriptor.session_id, secrets=secrets)
"""
# Own modules, packages among them; may only fall.
MOST_OF_A_CLIENT = 138
MOST_OF_A_PROGRAM = 158
MOST_OF_A_PROCESS = 183
COUNT = """
import sys
own = [name for name in sys.modules if name.split(".")[0] in ("secagg", "dpnoise")]
print(len(own), *sorted(set(sys.modules) & set(sys.argv[1:])))
"""


def own_modules(script, heavy, offer=b""):
    """Return how many of our modules a program has loaded, and which heavy ones."""
    done = subprocess.run(
        [sys.executable, "-c", script + COUNT, *heavy],
        input=offer,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    count, *loaded = done.stdout.decode().split()
    return int(count), loaded


def test_a_client_that_checks_and_encodes_loads_few_modules():
    plan = secagg.plan(
        clients=3, dimension=4, l2_clip=2.0, epsilon=8.0, delta=1e-6, ladder=4
    )
    server = secagg.StepServer(plan, aggregator="hub", task_id="sums", session_number=1)
    heavy = (
        *("grpc", "asyncio", "typer", "rich", "google.protobuf", "cryptography.x509"),
        *("secagg.pki", "secagg.wire", "secagg.transport", "secagg.server"),
        *("dpnoise.planning", "dpnoise.answers", "dpnoise.accounting.calibration"),
        *("dpnoise.local.separated", "dpnoise.mechanisms.conditional_rounding"),
    )
    count, loaded = own_modules(CLIENT, heavy, server.offer)
    assert not loaded
    assert count <= MOST_OF_A_CLIENT


def test_a_client_program_loads_no_planner_and_no_server():
    heavy = (
        "dpnoise.planning",
        "dpnoise.answers",
        "secagg.server",
        "secagg.simulation",
    )
    count, loaded = own_modules(
        "import secagg.client.program, secagg.cli.client", heavy
    )
    assert not loaded
    assert count <= MOST_OF_A_PROGRAM
    # With the command line, its checks before the start, and the network.
    script = (
        "from secagg.cli import app; app._command('client'); "
        "import secagg.client.program, secagg.client.grpc_connection, "
        "secagg.client.enrolment_files, secagg.cli.client_inputs, "
        "secagg.cli.checks.setup_checks"
    )
    count, loaded = own_modules(script, (*heavy, "secagg.two_aggregators"))
    assert not loaded
    assert count <= MOST_OF_A_PROCESS


IN_ONE_PROCESS = """
import asyncio, os, sys, threading
import numpy as np
import secagg

def note(frame, event, _):
    if event == "call":
        entered.add(frame.f_code.co_filename)

async def add_up(noise, limits):
    async with secagg.local(noise, privacy_limits=limits) as people:
        threading.setprofile(note)
        sys.setprofile(note)
        await people.sum([np.ones(4)] * 20)
        sys.setprofile(None)
        threading.setprofile(None)

entered = set()
noise = secagg.plan(clients=20, dimension=4, l2_clip=2.0, epsilon=8.0, delta=1e-6)
limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-6)
asyncio.run(add_up(noise, limits))
home = secagg.__path__[0] + os.sep
files = [path for path in entered if path.startswith(home)]
assert len(files) <= MOST, sorted(files)
"""
# Modules of which one sum runs a function; may only fall.
MOST_OF_A_SUM = 94


def test_sums_in_one_process_need_few_modules_and_no_grpc():
    heavy = ("grpc", "typer", "secagg.server.http_edge.listener")
    script = f"MOST = {MOST_OF_A_SUM}\n{IN_ONE_PROCESS}"
    assert not own_modules(script, heavy)[1]


def test_a_command_loads_the_store_and_the_types_of_its_options_where_it_needs_them():
    """And no more: the types of all options cost each command a tenth of a second."""
    script = "from secagg.cli import app; app._command(None)"
    heavy = ("pydantic", "typer._adapters", "secagg.storage", "importlib.metadata")
    assert not own_modules(script, heavy)[1]


@pytest.mark.parametrize(
    ("package", "most"), [("dpnoise", 2), ("secagg", 3), ("secagg.distributed_dp", 4)]
)
def test_a_package_loads_no_module_before_a_name_is_used(package, most):
    assert own_modules(f"import {package}", ["numpy"]) == (most, [])


def test_dpnoise_plans_where_only_numpy_and_cryptography_are_installed(tmp_path):
    for module in (np, cryptography):
        for found in Path(module.__file__).parents[1].iterdir():
            if found.name.startswith(("numpy", "cryptography", "cffi", "_cffi_")):
                target = tmp_path / found.name
                if not target.exists():
                    target.symlink_to(found)
    (tmp_path / "dpnoise").symlink_to(ROOT / "dpnoise")
    script = (
        f"import sys; sys.path.append({str(tmp_path)!r}); from dpnoise import plan; "
        "made = plan(clients=100, dimension=64, l2_clip=1.0, epsilon=1.0, delta=1e-5); "
        "loaded = {name.partition('.')[0] for name in sys.modules}; "
        "extra = loaded & {'secagg', 'grpc', 'google', 'scipy'}; "
        "sys.exit(str(extra or made.accountant))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.strip() == "mixture-gdp"
