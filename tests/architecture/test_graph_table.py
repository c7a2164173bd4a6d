"""The degrees that the documents name are those that are found."""

import re
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest

from secagg.config import load_server_settings
from secagg.protocol.graphs.choice import GraphAdversary, GraphDemand, choose_graph
from secagg.protocol.parameters import Graph
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT
from secagg.server.task.setup import prepare_task

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/choosing-a-graph.md").read_text()


def rows():
    rates = re.search(r"^\| Clients \|(.*)\|$", TEXT, re.MULTILINE).group(1)
    pairs = re.findall(r"(\d+) % corrupt, (\d+) % lost", rates)
    for clients, cells in re.findall(
        r"^\| ([\d ]+) \| (\d+ / .*) \|$", TEXT, re.MULTILINE
    ):
        for (corrupt, dropout), cell in zip(pairs, cells.split(" | "), strict=True):
            yield (
                int(clients.replace(" ", "")),
                Fraction(int(corrupt), 100),
                Fraction(int(dropout), 100),
                tuple(int(number) for number in cell.split(" / ")),
            )


def test_the_graph_table_matches_choose_graph():
    listed = list(rows())
    assert len(listed) == 12
    for clients, corrupt, dropout, shown in listed:
        found = choose_graph(
            GraphDemand.from_rates(clients, corrupt=corrupt, dropout=dropout),
            GraphAdversary.CURIOUS,
        )
        assert (found.degree, found.threshold) == shown, clients
        assert found.graph is Graph.RING


def test_the_documented_settings_use_a_ring(tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert tomllib.loads(block)["cohort"]["degree"] == "auto"
    path = tmp_path / "server.toml"
    path.write_text(
        block
        + '[tls]\nca = "c"\ncertificate = "c"\nkey = "k"\n[task]\nid = "t"\n'
        + f'[vector]\ndimension = 4\n[noise]\nnone = "{NO_NOISE_ACKNOWLEDGEMENT}"\n'
    )
    settings = load_server_settings(path, environment={}).settings
    assert prepare_task(settings).parameters.degree > 0


@pytest.mark.parametrize(
    ("clients", "adversary"),
    [
        (100, GraphAdversary.CURIOUS),
        (900, GraphAdversary.MALICIOUS),
        (10_001, GraphAdversary.MALICIOUS),
    ],
)
def test_cases_listed_as_complete_graph_get_the_complete_graph(clients, adversary):
    third = Fraction(1, 3) if adversary is GraphAdversary.CURIOUS else Fraction(1, 10)
    demand = GraphDemand.from_rates(clients, corrupt=third, dropout=third)
    assert choose_graph(demand, adversary).graph is Graph.COMPLETE
