"""Fuzzes plan files and files of weights, which steer where processes send."""

from dataclasses import replace
from pathlib import Path

from tests.fuzz.mutator import fuzz
from tests.plan.support import clos
from transport.plan import planfile, watch
from transport.plan.assign import assign


def test_plan__damaged_is_read_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    addresses = {"host0": "127.0.0.1", "host1": "127.0.0.2"}
    routes = replace(clos(2, 1, 2, 4), addresses=addresses)
    pairs = assign(routes, {("host0", "host1"): 1_000, ("host1", "host0"): 7}, paths=2).pairs
    planfile.write(planfile.Plan("x", {"job": pairs}), file)

    def reads(data: bytes) -> None:
        file.write_bytes(data)
        plan = planfile.read(file, steers=True)
        watch.Watch(plan, where=tmp_path).step()
        plan.load()
        plan.ports()
        planfile.as_json(plan)

    fuzz([file.read_bytes()], reads, planfile.PlanError, usual=500)


def test_weights__damaged_are_read_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    weights = {f"0-7-{pid}-9-0": {"10.0.0.2": {"0": [1.0, 0.5], "1": [0.0]}} for pid in range(3)}
    watch.write(weights, file)

    def reads(data: bytes) -> None:
        file.write_bytes(data)
        watch.read(file)

    fuzz([file.read_bytes()], reads, watch.WeightsError, usual=1_000)
