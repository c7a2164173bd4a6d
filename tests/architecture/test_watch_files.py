"""Alarms and dashboards under deploy/ name only what an aggregator measures."""

import json
import re
from pathlib import Path

import pytest

from secagg.runtime.metrics import METRICS, PROCESS_METRICS, Kind

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
LABELS = {label for metric in METRICS for label in metric.labels}
# What a scrape adds, and what quantiles are made of.
LABELS |= {"instance", "job", "le"}
FUNCTIONS = {"count", "histogram_quantile", "increase", "max", "max_over_time"}
FUNCTIONS |= {"rate", "sum", "time"}
WORDS = {"and", "by", "offset", "on", "unless"}
PAIRS = {"(": ")", "{": "}", "[": "]"}


def scraped_names():
    names = {"up", *PROCESS_METRICS}
    for metric in METRICS:
        if metric.kind is Kind.HISTOGRAM:
            names |= {f"{metric.name}_{part}" for part in ("bucket", "count", "sum")}
        else:
            names.add(metric.name)
    return names


def rules():
    text = (PROMETHEUS / "rules.yml").read_text()
    return re.split(r"^ +- alert: ", text, flags=re.MULTILINE)[1:]


def rule_expressions():
    return [re.search(r"^ +expr: (.+)$", rule, re.MULTILINE)[1] for rule in rules()]


def panels():
    return [
        (path.stem, panel)
        for path in DASHBOARDS
        for panel in json.loads(path.read_text())["panels"]
    ]


EXPRESSIONS = [
    *rule_expressions(),
    *(target["expr"] for _, panel in panels() for target in panel["targets"]),
]


def complaints(expression):
    """Say what an expression names that no scrape has, and whether it can be read."""
    found = []
    open_brackets = []
    bare = re.sub(r'"[^"]*"', '""', expression)
    for character in bare:
        if character in PAIRS:
            open_brackets.append(PAIRS[character])
        elif character in PAIRS.values() and (
            not open_brackets or open_brackets.pop() != character
        ):
            found.append(f"unbalanced {character}")
    found += [f"unbalanced {character}" for character in open_brackets]
    bare = re.sub(r"\[\d+[smhd]\]|offset \d+[smhd]", "", bare)
    for match in re.finditer(r"[A-Za-z_]\w*", bare):
        word, after = match[0], bare[match.end() :].lstrip()
        if word in WORDS or (word in FUNCTIONS and after[:1] == "("):
            continue
        if word in FUNCTIONS and after.startswith("by"):
            continue
        known = LABELS | scraped_names()
        if word not in known:
            found.append(f"{word} is not scraped")
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_uses_only_scraped_metrics(expression):
    assert complaints(expression) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "rate(secagg_sum_seconds[5m])",
        "secagg_sessions",
        "sum by (client) (secagg_sessions_total)",
        "rate(secagg_calls_total[5m]",
        "secagg_is_ready)",
    ],
)
def test_the_check_sees_a_wrong_expression(wrong):
    assert complaints(wrong)


def test_every_alarm_has_severity_summary_and_next_step():
    names = [rule.split("\n")[0] for rule in rules()]
    assert len(set(names)) == len(names) == 15
    for rule in rules():
        assert re.search(r"severity: (page|ticket)$", rule, re.MULTILINE)
        assert re.search(r'summary: "[^"]+\."$', rule, re.MULTILINE)
        assert re.search(r'next_step: "[^"]+\."$', rule, re.MULTILINE)


def test_every_alarm_is_raised_by_a_day_that_promtool_tries():
    tried = "".join(path.read_text() for path in PROMETHEUS.glob("*_test.yml"))
    raised = re.findall(
        r"^ +alertname: (\w+)\n +exp_alerts:\n +- exp_labels", tried, re.MULTILINE
    )
    assert set(raised) == {rule.split("\n")[0] for rule in rules()}


def test_alarms_of_a_task_aggregate_over_all_aggregators_of_a_store():
    """Only the one that ended a session counts it: the others would raise alarms."""
    for rule in rules():
        expression = re.search(r"^ +expr: (.+)$", rule, re.MULTILINE)[1]
        if "secagg_sessions_total" in expression or "secagg_task_s" in expression:
            together = re.findall(r"(?:max|sum) by \(job, task\)", expression)
            assert len(together) == len(re.findall("secagg_(?:task|se)", expression))


def test_every_metric_is_drawn_or_alarms():
    together = " ".join(EXPRESSIONS)
    unused = {m.name for m in METRICS if m.name not in together}
    assert unused == {"secagg_build_info"}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_imported(path):
    board = json.loads(path.read_text())
    assert board["uid"] == f"secagg-{path.stem}"
    assert board["schemaVersion"] >= 39
    variables = {each["name"] for each in board["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"]))) <= variables
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({tuple(panel["gridPos"].items()) for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["targets"]
        assert panel["title"]


def test_the_table_of_the_operator_is_that_of_the_code():
    page = (ROOT / "docs" / "monitoring.md").read_text()
    rows = re.findall(r"^\| `(secagg_\w+)` \((\w+)\) \| (.*?) \|", page, re.MULTILINE)
    assert rows == [
        (metric.name, str(metric.kind), ", ".join(metric.labels) or "–")
        for metric in METRICS
    ]
