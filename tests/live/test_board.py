"""Tests the Grafana board: its structure, and that its queries name metrics that are exported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.live import board, check_board
from tests.live.test_alerts import needs_promtool, promtool
from transport.diagnose.live.metrics import COUNTERS, METRICS
from transport.live import names


def test_board__has_the_structure_that_grafana_reads() -> None:
    found = board.load()
    assert found["schemaVersion"] >= 36
    assert found["title"]
    assert found["uid"]
    variables = {each["name"]: each for each in found["templating"]["list"]}
    assert set(variables) == {"datasource", "instance", "pid"}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids)) > 10
    for panel in found["panels"]:
        assert panel["type"] in ("timeseries", "stat")
        assert panel["title"]
        assert panel["targets"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references))


def test_board__panels_do_not_overlap() -> None:
    taken = set()
    for panel in board.load()["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken
                taken.add((x, y))


def test_board__queries_use_metrics_that_are_exported() -> None:
    known = {sample for family in names.families() for sample in family.sample_names}
    known |= {name + "_total" * (name in COUNTERS) for name in METRICS}
    found = board.load()
    used = {name for _, query in board.queries(found) for name in board.METRIC.findall(query)}
    for variable in found["templating"]["list"]:
        used.update(board.METRIC.findall(str(variable["query"])))
    assert used
    assert used <= known, used - known
    for title, query in board.queries(found):
        assert "$instance" in query, title
        assert board.METRIC.search(query), title
        # Only counters and histograms have a rate.
        for name in board.METRIC.findall(query):
            grows = name.endswith(("_total", "_bucket"))
            assert grows == (f"rate({name}" in query or f"increase({name}" in query), (title, name)


@needs_promtool
def test_board__prometheus_evaluates_the_queries_of_verdicts(tmp_path: Path) -> None:
    """Each finds its series: a job with one incident that was not seen lately."""
    labels = 'instance="a",class="network_loss",place="rank 3"'
    values = dict.fromkeys(METRICS, "1x9") | dict.fromkeys(COUNTERS, "0+60x9")
    series = [
        {"series": f"{name}{'_total' * (name in COUNTERS)}{{{labels}}}", "values": values[name]}
        for name in METRICS
    ]
    wanted = [query for _, query in board.queries(board.load()) if "weft_diagnosis_" in query]
    asked = [f"count({board.filled_in(query, '5m')} >= 1)" for query in wanted]
    tests = [{"expr": query, "eval_time": "9m", "exp_samples": [{"value": 1}]} for query in asked]
    case = {"interval": "1m", "input_series": series, "promql_expr_test": tests}
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"tests": [case]}))
    promtool("test", "rules", tmp_path / "test.yml")
    assert len(asked) > 10


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_board__a_real_prometheus_answers_every_query(tmp_path: Path) -> None:
    assert check_board.check(tmp_path) == []
