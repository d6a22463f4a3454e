"""Runs the benchmark of AF_XDP, tiny: its datagrams pass past the kernel, with times of arrival."""

import json

import pytest
from click.testing import CliRunner

from bench.__main__ import bench
from tests.xdp.support import reason_to_skip


@pytest.mark.namespaces
@pytest.mark.parametrize("mtu_bytes", [1500, 9000])
def test_xdp__datagrams_pass_by_the_kernel(mtu_bytes: int) -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    words = ["xdp", "--datagrams", "100", "--repeats", "1", "--mtu", str(mtu_bytes)]
    done = CliRunner().invoke(bench, [*words, "--json", "-"])
    assert done.exit_code == 0, done.output
    rows = {row["contender"]: row for row in json.loads(done.stdout)["rows"]}
    assert set(rows) == {"xdp", "udp", "udp GSO"}
    assert {name: row["bypassed_share"] for name, row in rows.items()} == {
        "xdp": 1.0,
        "udp": 0.0,
        "udp GSO": 0.0,
    }
    assert all(row["stamped_share"] == 1.0 for row in rows.values())
    assert rows["xdp"]["datagrams_per_call"] > 8  # one call for a batch of 32, at most for each end
