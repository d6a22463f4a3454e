"""Tests the alerting rules: their structure, their metrics, and when they fire (promtool)."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.waiting import PATIENCE_S
from transport.cli import weft
from transport.diagnose.finding import CLASSES
from transport.diagnose.live.metrics import METRICS
from transport.live import names

RULES = resources.files("transport.live").joinpath("weft-alerts.yml").read_text()
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus"
)


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load(RULES)
    return [rule for group in found["groups"] for rule in group["rules"]]


def test_alerts__use_metrics_and_classes_that_are_exported() -> None:
    known = {sample for family in names.families() for sample in family.sample_names} | {*METRICS}
    for rule in rules():
        assert set(re.findall(r"weft_\w+", rule["expr"])) <= known, rule["alert"]
        for each in re.findall(r'class[=!]~"([^"]+)"', rule["expr"]):
            assert set(each.split("|")) <= set(CLASSES)
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
    assert len({rule["alert"] for rule in rules()}) == len(rules())


def test_alerts__are_written_by_the_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(weft, ["metrics", "--alerts", str(tmp_path / "a.yml")])
    assert done.exit_code == 0
    assert (tmp_path / "a.yml").read_text() == RULES


def promtool(*words: str | Path) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_alerts__promtool_accepts_them(tmp_path: Path) -> None:
    file = tmp_path / "weft.yml"
    file.write_text(RULES)
    promtool("check", "rules", file)


def case(alert: str, at: str, fires: bool, series: str, values: str) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": series, "values": values}],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": at,
                "exp_samples": [{"value": 1}] if fires else [],
            }
        ],
    }


@needs_promtool
def test_alerts__fire_when_they_should(tmp_path: Path) -> None:
    def finding(kind: str) -> str:
        return f'weft_diagnosis_finding{{class="{kind}",place="rank 3",instance="a"}}'

    quiet = finding("network_loss").replace("_finding{", "_finding_quiet{")
    missing = 'weft_diagnosis_ranks_missing{instance="a"}'
    drops = 'weft_engine_host_drops_total{instance="a",pid="7",engine="0"}'
    cases = [
        case("WeftJobStandsStill", "2m", True, finding("crash"), "0 1 1 1"),
        case("WeftJobStandsStill", "2m", False, finding("congestion"), "1 1 1 1"),
        case("WeftJobIsSlow", "1m", False, finding("network_loss"), "1x9"),
        case("WeftJobIsSlow", "4m", True, finding("network_loss"), "1x9"),
        case("WeftJobIsSlow", "4m", False, finding("crash"), "1x9"),
        case("WeftIncidentIsQuiet", "20m", True, quiet, "1x30"),
        case("WeftIncidentIsQuiet", "20m", False, quiet, "1x9 0 1x20"),  # it was seen meanwhile
        case("WeftRanksAreNotSeen", "12m", True, missing, "2x15"),
        case("WeftRanksAreNotSeen", "12m", False, missing, "0x15"),
        case("WeftJobIsNotJudged", "12m", True, 'weft_diagnosis_ranks{instance="a"}', "0x15"),
        case("WeftJobIsNotJudged", "12m", False, 'weft_diagnosis_ranks{instance="a"}', "8x15"),
        case("WeftSocketsOverflow", "15m", True, drops, "0+60000x20"),
        case("WeftSocketsOverflow", "15m", False, drops, "0+6x20"),
    ]
    (tmp_path / "weft.yml").write_text(RULES)
    document = {"rule_files": ["weft.yml"], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", tmp_path / "test.yml")
