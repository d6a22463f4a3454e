"""Tests `bench fidelity`: the parameters that it gives the simulator, and tiny runs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench import fidelity
from bench.__main__ import bench
from bench.lib import fidelity_lab, fidelity_sim
from tests.lab.support import ROOT, reason_to_skip
from transport.endpoint import knobs
from transport.lab import namespace, state
from transport.sim import parse

LAB = ROOT / "examples" / "labs" / "slow_paths.toml"


def call(*words: str) -> Result:
    return CliRunner().invoke(bench, list(words))


@pytest.mark.parametrize("pattern", list(fidelity.PATTERNS))
def test_patterns__send_what_their_name_says(pattern: str) -> None:
    pairs = fidelity.PATTERNS[pattern](6)
    assert all(a != b for a, b in pairs)
    assert len(set(pairs)) == len(pairs)
    assert len(pairs) == {"one": 1, "permutation": 6, "incast": 5, "all_to_all": 30}[pattern]


def test_scenario__has_the_knobs_of_the_endpoints(tmp_path: Path) -> None:
    told = fidelity_lab.knobs("weft/paths=8/rto=min=5ms", knobs.in_force())
    endpoint = {"mtu_bytes": 9_000, "link_bytes_per_s": 0}
    keys = fidelity_sim.hosts_keys(told, endpoint, {"delay_ns": 5, "jitter_ns": 7})
    (tmp_path / "work.goal").write_text(fidelity_sim.schedule(2, [(0, 1)], 1 << 20))
    text = fidelity_sim.text(LAB, keys, fidelity_sim.policies_of(told))
    hosts = parse(text, folder=tmp_path).keys["hosts"]
    assert (hosts["paths"], hosts["segment_bytes"], hosts["rto_ns_min"]) == (8, 8_972, 5_000_000)
    assert (hosts["delay_ns"], hosts["jitter_ns"], hosts["wire_overhead_bytes"]) == (5, 7, 42)
    assert not hosts["receives_ready"]
    sizes = parse(text, folder=tmp_path).work.transfers["bytes"].tolist()
    assert sizes == [8, 1 << 20]


def test_host__is_told_what_an_idle_network_showed() -> None:
    idle = {"packet_ns": 300, "packet_ns_p10": 200, "caller_ns": 1_000}
    host = fidelity.host_of(idle, wire_ns=150)
    assert host == {"delay_ns": 50, "jitter_ns": 200, "caller_ns": 700, "wire_ns": 150}


@pytest.mark.namespaces
def test_fidelity__runs_the_same_work_in_both(tmp_path: Path) -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    out = tmp_path / "report.html"
    words = ("--tiny", "--lab", str(LAB), "--html", str(out), "--json", "-")
    done = call("fidelity", *words)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    (row,) = found["rows"]
    assert (row["lab"], row["pattern"], row["flows"]) == ("slow_paths", "one", 1)
    assert row["wrong"] == 0
    assert row["same_libraries"]
    assert set(row["libraries"]) == {"window_swift.so", "path_power_of_two.so", "loss_rack.so"}
    assert row["fct_ns"] > 0
    assert row["simulated_ns"] > 0
    assert row["error_share"] == pytest.approx(row["simulated_ns"] / row["fct_ns"] - 1)
    assert found["settings"]["hosts"]["weft"]["packet_ns"] > 0
    assert "<table>" in out.read_text()
    assert not [one for one in state.names() if one.endswith(f"-{os.getpid()}")]
    assert not list(namespace.DIRECTORY.glob(f"weft-*-{os.getpid()}-*"))


def test_fidelity__says_what_it_cannot_do(tmp_path: Path) -> None:
    place = tmp_path / "places.json"
    place.write_text("[]")
    assert call("fidelity", "--place", str(place)).exit_code == 2
    lab = tmp_path / "one.toml"
    lab.write_text("hosts = 1\n")
    done = call("fidelity", "--lab", str(lab))
    assert done.exit_code == 2
    assert "two hosts" in done.output


def test_events__of_live_policies_come_out_the_same() -> None:
    done = call("fidelity", "--events", "3000", "--json", "-")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["totals"]["decisions"] >= 3_000
    assert (found["totals"]["differ"], found["totals"]["skipped"]) == (0, 0)
    decided = {(row["family"], row["policy"]) for row in found["rows"]}
    assert {("window", "nscc"), ("path", "bitmap"), ("loss", "rack"), ("credit", "rccc")} <= decided
