"""The files under deploy/ fit together and name only settings that exist.

What their own programs think of them is `make deploy-check`.
"""

import dataclasses
import re
import textwrap
import tomllib
import typing
from pathlib import Path

import pytest
import yaml

from secagg.config import ClientSettings, ServerSettings, load_server_settings
from secagg.config.server import ServerSection

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
AGGREGATORS = [SERVICES[f"aggregator-{number}"] for number in (1, 2)]
CHART = DEPLOY / "chart"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
CONTAINERFILE = (DEPLOY / "container" / "Containerfile").read_text()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
TEXTS = [
    path
    for path in DEPLOY.rglob("*")
    if path.suffix in {".md", ".toml", ".yaml", ".yml", ".sh", ".service", ".tpl"}
]


def keys_of(*kinds):
    """Yield every setting as section and key."""
    for kind in kinds:
        hints = typing.get_type_hints(kind)
        for section in dataclasses.fields(kind):
            for field in dataclasses.fields(hints[section.name]):
                yield section.name, field.name


KEYS = set(keys_of(ServerSettings, ClientSettings))


def port_of(address):
    return int(address.rpartition(":")[2])


def default(name):
    return next(f.default for f in dataclasses.fields(ServerSection) if f.name == name)


def composed():
    """The settings of the aggregator of compose.yaml."""
    path = DEPLOY / "compose" / "server.toml"
    return load_server_settings(path, environment={}).settings


def charted(tmp_path):
    """The settings that the chart hands to its aggregator."""
    text = (CHART / "templates" / "settings.yaml").read_text()
    body = text.partition("server.toml: |\n")[2]
    body = body.replace("{{ .Values.drainSeconds }}", str(VALUES["drainSeconds"]))
    body, _, rest = body.partition("{{- .Values.settings")
    assert rest == " | nindent 4 }}\n"
    path = tmp_path / "server.toml"
    path.write_text(textwrap.dedent(body) + VALUES["settings"])
    return load_server_settings(path, environment={}).settings


@pytest.mark.parametrize(
    "path",
    [p for p in TEXTS if p.suffix in {".yaml", ".yml"} and "templates" not in p.parts],
    ids=lambda path: str(path.relative_to(DEPLOY)),
)
def test_deployment_yaml_has_no_duplicate_keys(path):
    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node, **options):
            keys = [key.value for key, _ in node.value]
            assert len(set(keys)) == len(keys), keys
            return super().construct_mapping(node, **options)

    Strict.add_constructor(
        "tag:yaml.org,2002:map",
        lambda loader, node: loader.construct_mapping(node, deep=True),
    )
    assert yaml.load(path.read_text(), Strict)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_a_file_names_only_settings_that_exist(path):
    text = path.read_text()
    sections = "|".join({section for section, _ in KEYS})
    for section, key in re.findall(
        rf"(?<![\w./-])({sections})\.([a-z][a-z_]+)\b(?!\.)", text
    ):
        if key not in {"toml", "key", "pem", "py", "service", "mark", "sh"}:
            assert (section, key) in KEYS, f"{section}.{key}"
    variables = {f"SECAGG_{section}_{key}".upper() for section, key in KEYS}
    for name in re.findall(r"\bSECAGG_[A-Z_]+\b", text):
        assert name in variables


def test_the_ports_of_the_composition_agree():
    server = composed().server
    edge = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text())
    (listener,) = edge["static_resources"]["listeners"]
    (cluster,) = edge["static_resources"]["clusters"]
    ((place,),) = (
        each["lb_endpoints"] for each in cluster["load_assignment"]["endpoints"]
    )
    inside = place["endpoint"]["address"]["socket_address"]
    for each in AGGREGATORS:
        assert each["networks"] == {"inside": {"aliases": [inside["address"]]}}
    assert inside["port_value"] == port_of(server.listen)
    health = place["endpoint"]["health_check_config"]["port_value"]
    assert health == port_of(server.health_listen)
    (check,) = cluster["health_checks"]
    assert check["reuse_connection"] is False  # a port that closes idle connections
    outside = listener["address"]["socket_address"]["port_value"]
    assert SERVICES["edge"]["ports"] == [f"{outside}:{outside}"]
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    ((found,),) = (each["dns_sd_configs"] for each in scraped["scrape_configs"])
    assert found["names"] == [inside["address"]]
    port = found["port"]
    assert port == port_of(server.metrics_listen)
    assert {outside, port} == set(
        map(int, re.search(r"^EXPOSE (.*)$", CONTAINERFILE, re.MULTILINE)[1].split())
    )


def test_only_the_edge_listens_on_public_addresses():
    for name, service in SERVICES.items():
        ports = service.get("ports", [])
        assert name == "edge" or all(each.startswith("127.0.0.1:") for each in ports)
    assert SERVICES["database"]["network_mode"] == "none"
    assert SERVICES["database"].get("ports") is None
    assert COMPOSE["networks"]["inside"]["internal"] is True


def test_compose_mounts_only_paths_that_exist_or_are_created_by_instructions():
    made = (DEPLOY / "README.md").read_text()
    folder = DEPLOY / "compose"
    sources = [each["file"] for each in COMPOSE["secrets"].values()]
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                sources.append(source)
            else:
                assert source in COMPOSE["volumes"]
    for source in sources:
        if not (folder / source).exists():
            assert f"deploy/compose/{source.removeprefix('./')}" in made, source
    settings = composed()
    tls, state = settings.tls, settings.server
    for each in AGGREGATORS:
        volumes = [volume.split(":") for volume in each["volumes"]]
        mounted = {volume[1] for volume in volumes}
        # A folder: files that are mounted one by one never change.
        for path in (tls.ca, tls.certificate, tls.key, state.revoked):
            assert str(path.parent) in mounted
            assert str(path) not in mounted
            assert f"{path.name}`" in made
        for path in (state.state_dir, state.rollback_mark, state.output_dir):
            assert any(str(path).startswith(f"{where}/") for where in mounted)


def test_two_aggregators_share_uploads_but_not_their_private_directories():
    state = composed().server
    first, second = (
        {volume.split(":")[1]: volume.split(":")[0] for volume in each["volumes"]}
        for each in AGGREGATORS
    )
    own, shared = state.state_dir.parent, state.output_dir.parent
    assert state.rollback_mark.parent == own
    assert first[str(own)] != second[str(own)]
    assert state.blobs.startswith(f"file:{shared}/")
    assert first[str(shared)] == second[str(shared)]
    assert f"mkdir -p {own} {shared}" in CONTAINERFILE  # for the user of the image


def test_every_image_has_a_version_and_ours_is_this_one():
    images = [service["image"] for service in SERVICES.values()]
    images += re.findall(r"^ARG PYTHON=(.+)$", CONTAINERFILE, re.MULTILINE)
    for image in images:
        tag = image.rpartition("/")[2].partition(":")[2]
        assert re.search(r"\d+\.\d+", tag), image
    assert AGGREGATORS[0]["image"] == f"secagg:{VERSION}"
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == VALUES["image"]["tag"] == VERSION
    assert f"--tag secagg:{VERSION} ." in CONTAINERFILE


def test_the_chart_runs_with_its_values(tmp_path):
    settings = charted(tmp_path)
    server = settings.server
    pod = (CHART / "templates" / "aggregator.yaml").read_text()
    for name, address in (
        ("clients", server.listen),
        ("health", server.health_listen),
        ("metrics", server.metrics_listen),
    ):
        assert f"{{name: {name}, containerPort: {port_of(address)}}}" in pod
    assert f"grpc: {{port: {port_of(server.health_listen)}}}" in pod
    assert server.drain_seconds == VALUES["drainSeconds"]
    instructions = (DEPLOY / "README.md").read_text()
    tls = settings.tls
    for path in (tls.ca, tls.certificate, tls.key, server.revoked):
        assert str(path.parent) == "/etc/secagg/pki"
        assert f"--from-file={path.name}" in instructions
    assert "mountPath: /etc/secagg/pki," in pod
    assert "mountPath: /var/lib/secagg}" in pod
    (user,) = re.findall(r"^USER (\d+):\1$", CONTAINERFILE, re.MULTILINE)
    assert set(re.findall(r"(?:runAsUser|runAsGroup|fsGroup): (\d+)", pod)) == {user}
    named = set(re.findall(r"\.Values\.([\w.]+)", "".join(map(_text, _templates()))))
    for path in named:
        value = VALUES
        for key in path.split("."):
            value = value[key]


def _templates():
    return sorted((CHART / "templates").iterdir())


def _text(path):
    return path.read_text()


def seconds_of(text):
    value, unit = re.fullmatch(r"(\d+)(s|min|)", str(text)).groups()
    return int(value) * (60 if unit == "min" else 1)


def test_a_supervisor_waits_longer_for_an_aggregator_than_it_drains():
    unit = (DEPLOY / "systemd" / "secagg-server.service").read_text()
    (stop,) = re.findall(r"^TimeoutStopSec=(\w+)$", unit, re.MULTILINE)
    assert seconds_of(stop) > default("drain_seconds")
    grace = seconds_of(AGGREGATORS[0]["stop_grace_period"])
    assert grace > composed().server.drain_seconds
    pod = (CHART / "templates" / "aggregator.yaml").read_text()
    assert "terminationGracePeriodSeconds: {{ add .Values.drainSeconds 20 }}" in pod


def test_no_deployment_allows_core_dumps_or_root():
    for role in ("server", "client"):
        unit = (DEPLOY / "systemd" / f"secagg-{role}.service").read_text()
        assert "\nLimitCORE=0\n" in unit
        assert "\nDynamicUser=yes\n" in unit
    assert AGGREGATORS[0]["ulimits"]["core"] == 0
    assert AGGREGATORS[0]["cap_drop"] == ["ALL"]
    pod = (CHART / "templates" / "aggregator.yaml").read_text()
    assert "runAsNonRoot: true" in pod
    assert "drop: [ALL]" in pod


def test_systemd_restarts_a_server_that_hangs_without_a_dump():
    unit = (DEPLOY / "systemd" / "secagg-server.service").read_text()
    lines = unit.splitlines()
    assert "Type=notify" in lines
    assert "WatchdogSignal=SIGKILL" in lines
    (patience,) = re.findall(r"^WatchdogSec=(\w+)$", unit, re.MULTILINE)
    assert seconds_of(patience) >= 15  # as the server demands
    # prometheus_client stops retrying on a process without /proc/stat.
    assert "ProcSubset=pid" not in lines


def test_grafana_mounts_exactly_the_committed_dashboards():
    mounted = {
        Path(volume.split(":")[0]).name
        for volume in SERVICES["grafana"]["volumes"]
        if volume.split(":")[1].startswith("/etc/grafana/dashboards/")
    }
    assert mounted == {path.name for path in (DEPLOY / "grafana").glob("*.json")}
    folder = DEPLOY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((folder / "dashboards" / "secagg.yml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"
    (source,) = yaml.safe_load((folder / "datasources" / "secagg.yml").read_text())[
        "datasources"
    ]
    assert re.fullmatch(r"http://(\w+):9090", source["url"])[1] in SERVICES
