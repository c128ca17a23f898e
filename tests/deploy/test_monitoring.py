"""Alert rules and dashboard: correct by promtool, and about metrics that exist.

test_alerts.py plays real faults.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from tests.agent.admin.prometheus_server import ALERT_RULES as RULES
from tests.agent.admin.prometheus_server import promtool

from hansa.agent.admin.metrics import AGENT_METRICS

ROOT = Path(__file__).parents[2]
RULE_TESTS = Path(__file__).parent / "hansa.rules.test.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "hansa.json"


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboard_expressions() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$node", ".*")
            yield re.sub(r"\$__(rate_interval|range)", "5m", expression)


def test_rules_are_valid_and_each_fires_and_clears(tmp_path):
    for file in (RULES, RULE_TESTS):
        shutil.copy(file, tmp_path)
    promtool("check", "rules", RULES.name, directory=tmp_path)
    promtool("test", "rules", RULE_TESTS.name, directory=tmp_path)


def test_every_rule_has_a_test_that_it_fires_and_one_that_it_clears():
    cases = [
        case
        for test in yaml.safe_load(RULE_TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    for rule in rules():
        fired = [bool(case["exp_alerts"]) for case in cases if case["alertname"] == rule["alert"]]
        assert True in fired and fired[-1] is False, rule["alert"]


def test_every_rule_is_documented():
    text = (ROOT / "docs" / "how-to" / "monitor.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (Hansa\w+) \|", text, flags=re.M) == [r["alert"] for r in rules()]


def test_queries_of_the_dashboard_are_valid(tmp_path):
    queries = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(dashboard_expressions())
    ]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "x", "rules": queries}]}))
    promtool("check", "rules", "panels.yml", directory=tmp_path)


def test_rules_and_dashboard_use_metrics_that_exist():
    texts = [*(rule["expr"] for rule in rules()), *dashboard_expressions()]
    used = {name for text in texts for name in re.findall(r"\bhansa_\w+", text)}
    assert used <= {metric.name for metric in AGENT_METRICS}
