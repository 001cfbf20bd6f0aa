"""Rules and dashboard: each metric and label that they name is one that the code exposes."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SUFFIXES = {
    "Counter": ("_total",),
    "build_counter": ("_total",),
    "Gauge": ("",),
    "build_gauge": ("",),
    "Histogram": ("_bucket", "_sum", "_count"),
}
OWN = {"job", "instance", "le"}
"""Labels that Prometheus adds, and the one of buckets."""
LIBRARY = {"up": set(), "process_resident_memory_bytes": set()}
"""Metrics of Prometheus itself and of prometheus_client, with their labels."""


def list_exposed() -> dict[str, set[str]]:
    """Return the samples that the code declares, with their labels."""
    exposed: dict[str, set[str]] = {name: set(labels) for name, labels in LIBRARY.items()}
    for package in ("covey", "coordinator", "worker", "validator", "trainer"):
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text()
            for node in ast.walk(ast.parse(text)) if '"covey_' in text else ():
                called = getattr(node, "func", None)
                name = getattr(called, "id", getattr(called, "attr", ""))
                if isinstance(node, ast.Call) and name in SUFFIXES and node.args:
                    first = node.args[0]
                    if isinstance(first, ast.Constant) and str(first.value).startswith("covey_"):
                        for suffix in SUFFIXES[name]:
                            exposed[f"{first.value}{suffix}"] = set(list_labels(node))
    return exposed


def list_labels(call: ast.Call) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg == "label":
            yield ast.literal_eval(keyword.value)
    if len(call.args) > 2 and isinstance(call.args[2], ast.List):
        for each in call.args[2].elts:
            yield "job_name" if isinstance(each, ast.Name) else ast.literal_eval(each)


def list_expressions() -> list[tuple[str, str]]:
    """Return the expressions of rules and panels, with what is shown beside them."""
    rules = yaml.safe_load((DEPLOY / "prometheus/alarms.yml").read_text())["groups"][0]["rules"]
    board = json.loads((DEPLOY / "grafana/pool.json").read_text())
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    return [(rule["expr"], rule["annotations"]["summary"]) for rule in rules] + [
        (target["expr"], target["legendFormat"]) for target in targets
    ]


def find_unknown(expression: str, shown: str, exposed: dict[str, set[str]]) -> list[str]:
    """Return the metrics and labels of an expression that nothing exposes."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    names = set(re.findall(r"\b(?:covey|process)_\w+|\bup\b", bare))
    unknown = sorted(names - exposed.keys())
    labels = set().union(OWN, *(exposed[name] for name in names & exposed.keys()))
    used = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", bare) + re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", shown)
    for group in re.findall(r"\bby \(([^)]*)\)", bare):
        used += [label.strip() for label in group.split(",")]
    return unknown + sorted({label for label in used if label not in labels})


def test_expressions__metrics_and_labels__are_exposed():
    exposed, expressions = list_exposed(), list_expressions()
    assert len(expressions) > 40
    assert {text: found for text, shown in expressions if (found := find_unknown(text, shown, exposed))} == {}


def test_find_unknown__wrong_names__are_found():
    exposed = {"covey_polls": set[str](), "covey_answers_total": {"status"}}
    assert find_unknown("covey_pols > 0", "", exposed) == ["covey_pols"]
    assert find_unknown('sum by (route) (covey_answers_total{state="2xx"})', "{{code}}", exposed) == [
        "code",
        "route",
        "state",
    ]
    assert find_unknown('rate(covey_answers_total{status="up"}[5m])', "{{ $labels.job }}", exposed) == []


def test_rules__names_and_severities__are_unique_and_known():
    rules = yaml.safe_load((DEPLOY / "prometheus/alarms.yml").read_text())["groups"][0]["rules"]
    names = [rule["alert"] for rule in rules]
    assert len(names) == len(set(names))
    assert {rule["labels"]["severity"] for rule in rules} == {"warning", "critical"}
    guide = (ROOT / "docs/guides/monitor.md").read_text()
    assert [name for name in names if f"`{name}`" not in guide] == []


def test_dashboard__panels__do_not_overlap():
    board = json.loads((DEPLOY / "grafana/pool.json").read_text())
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in board["panels"]}) == len(places)
