"""Tests recorded results (hash, compare, CSV), options, placements, output of foreign programs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from bench.__main__ import BENCHES, NETWORK, TOOLS, bench
from bench.lib import stats
from bench.lib.common import document, rounds
from bench.lib.launch import program
from bench.lib.options import Size, heading, need_drawing, show, sweep
from bench.lib.placement import EnterNamespace, Placement, loopback, placed, read_places
from bench.lib.record import result_hash, seal_state, sealed
from bench.lib.report import figure_of
from bench.lib.study import present
from bench.peers import ALL, PROGRAMS, SOCKETS, iperf3, libfabric, missing, mptcp, tcp, ucx
from tests.waiting import PATIENCE_S
from transport.ground.text import csv_of_rows

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
COST = {"sender_cpu_ns": 10**9, "receiver_cpu_ns": 2 * 10**9, "cpu_share": 0.2}


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(bench, list(map(str, words)))


def result(name: str, rates: list[float], **more: Any) -> dict[str, Any]:
    rows = [{"contender": "weft", "round": i, "rate_bytes_per_s": r} for i, r in enumerate(rates)]
    keys, measures = ["contender"], {"rate_bytes_per_s": "higher"}
    made = stats.summarised(rows, keys, measures)
    return sealed(document(name, made, keys=keys, measures=measures, rounds=rows, **more))


def write(path: Path, found: dict[str, Any]) -> Path:
    path.write_text(json.dumps(found, indent=2))
    return path


def verdicts(old: Path, new: Path) -> list[str]:
    done = call("compare", old, new, "--json", "-")
    assert done.exit_code == 0, done.output
    return [row["verdict"] for row in json.loads(done.stdout)["rows"]]


def test_hash__sees_everything_but_the_time() -> None:
    found = result("x", [1.0, 2.0])
    assert seal_state(found) == "whole"
    later = json.loads(json.dumps(found))
    later["environment"]["date"] = "another"
    assert seal_state(later) == "whole"
    later["rows"][0]["rate_bytes_per_s"] = 9.0
    assert seal_state(later) == "changed"
    assert seal_state({"bench": "x", "rows": []}) == "none"
    assert result_hash({"a": 1, "b": 2}) == result_hash({"b": 2, "a": 1})


def test_compare__noise_better_and_worse(tmp_path: Path) -> None:
    old = write(tmp_path / "a.json", result("x", [10e9, 11e9, 12e9]))
    for rates, verdict in (
        ([11e9, 11.5e9, 12e9], "noise"),
        ([20e9, 21e9, 22e9], "better"),
        ([1e9, 2e9, 2.5e9], "worse"),
        ([20e9], "one run: no spread"),
    ):
        assert verdicts(old, write(tmp_path / "b.json", result("x", rates))) == [verdict]


def test_compare__table_and_notes(tmp_path: Path) -> None:
    old = write(tmp_path / "a.json", result("x", [2e9, 2e9], settings={"a": 1}))
    changed = result("x", [4e9, 4e9], settings={"a": 2}, partial=True)
    new = write(tmp_path / "b.json", changed)
    done = call("compare", old, new)
    assert done.exit_code == 0, done.output
    assert "2.000" in done.stdout
    assert "B is partial" in done.stdout
    assert "settings differ" in done.stdout
    changed["rounds"][0]["contender"] = "other"
    done = call("compare", old, write(new, changed))
    assert done.exit_code == 1
    assert "only in B: other" in done.output
    assert "hash mismatch" in done.output


def test_network__is_what_benchmarks_of_it_use_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set(BENCHES) > NETWORK
    for name, given, wanted in (
        ("p2p", None, "off"),
        ("p2p", "ring", "ring"),
        ("local", None, None),  # each of its contenders has its own
    ):
        monkeypatch.delenv("WEFT_LOCAL", raising=False)
        if given is not None:
            monkeypatch.setenv("WEFT_LOCAL", given)
        assert call(name, "--help").exit_code == 0
        assert os.environ.get("WEFT_LOCAL") == wanted


def test_network__each_benchmark_that_opens_endpoints_is_known() -> None:
    """Not all: others open them in bench/lib, or start programs that do."""
    here = RESULTS.parent
    opens = {one.stem for one in here.glob("*.py") if "Endpoint(" in one.read_text()}
    assert opens
    assert opens <= NETWORK


def test_network__results_and_tables_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_LOCAL", raising=False)
    before = write(tmp_path / "a.json", result("x", [2e9, 2e9]))
    monkeypatch.setenv("WEFT_LOCAL", "off")
    network = result("x", [2e9, 2e9])
    assert (network["local"], network["environment"]["knobs"].get("WEFT_LOCAL")) == ("off", None)
    monkeypatch.setenv("WEFT_LOCAL", "auto")
    memory = write(tmp_path / "c.json", result("x", [2e9, 2e9]))
    assert "local" not in call("render", before).stdout
    assert "local off: messages" in call("render", write(tmp_path / "b.json", network)).stdout
    assert "local auto: messages" in call("render", memory).stdout
    # Messages went over the network, too, when results did not say so.
    assert "local differs" not in call("compare", before, tmp_path / "b.json").stdout
    assert "local differs: off and auto" in call("compare", before, memory).stdout


def test_compare__wrong_usage(tmp_path: Path) -> None:
    old = write(tmp_path / "a.json", result("x", [1.0]))
    for text, said in (
        (json.dumps(result("y", [1.0])), "compare one bench at a time"),
        ("no json", "cannot read"),
        ('{"rows": []}', "it names no bench"),
        ('{"bench": "x"}', "it has no rows"),
    ):
        other = tmp_path / "b.json"
        other.write_text(text)
        done = call("compare", old, other)
        assert done.exit_code == 2
        assert said in done.output
    assert call("compare", old, tmp_path / "nosuch.json").exit_code == 2


def test_compare__recorded_results_can_still_be_read() -> None:
    # Skip the first recorded result, because results did not name their benchmark then.
    unnamed = RESULTS / "2026-11-20-nccl-2xH200-first.json"
    paths = sorted(path for path in RESULTS.glob("*.json") if path != unnamed)
    assert paths
    for path in paths:
        done = call("compare", path, path, "--json", "-")
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert all(row["ratio"] in (1, None) for row in found["rows"])
        unsealed = "A has no hash: it was recorded before results had one, or edited"
        assert (unsealed in found["notes"]) == ("sha256" not in json.loads(path.read_text()))


def test_render__old_and_new_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table, plot, page = (tmp_path / f"x.{kind}" for kind in ("csv", "png", "html"))
    done = call("render", RESULTS / "2026-11-20-p2p-2core.json", "--csv", table, "--html", page)
    assert done.exit_code == 0, done.output
    assert len(table.read_text().splitlines()) == len(done.stdout.splitlines())
    assert "bench p2p" in page.read_text()
    new = write(tmp_path / "x.json", result("x", [1e9, 3e9]))
    assert call("render", new, "--plot", plot).exit_code == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_heading__has_the_unit_that_values_are_written_in() -> None:
    keys = ("size_bytes", "gbytes_per_s", "rate_bytes_per_s", "t_avg_ns_max", "p99_us", "busbw")
    assert [heading(key, key, "Gb/s") for key in keys] == [
        *("size[bytes]", "rate[GB/s]", "rate[Gb/s]", "t_avg_max[usec]", "p99[usec]", "busbw[GB/s]"),
    ]
    assert heading("t_99_ns", "99%[usec]", "GB/s") == "99%[usec]"
    assert heading("size_bytes", "#bytes", "GB/s") == "#bytes"
    assert show("gbytes_per_s", 5.89) == "5.89"  # of old results, which are in GB/s


def test_figure__times_have_a_logarithmic_axis() -> None:
    pytest.importorskip("matplotlib")
    rows = [
        {"contender": "weft", "size_bytes": 8 << at, "t_ns": 10.0**at, "rate_bytes_per_s": 1e9 * at}
        for at in range(4, 8)
    ]
    found = {"rows": rows, "rounds": [], "x": "size_bytes", "keys": ["contender", "size_bytes"]}
    (times,) = figure_of(found, "t_ns", "GB/s").axes
    assert (times.get_yscale(), times.get_ylabel()) == ("log", "t[usec]")
    (rates,) = figure_of(found, "rate_bytes_per_s", "GB/s").axes
    assert (rates.get_yscale(), rates.get_ylabel()) == ("linear", "rate[GB/s]")
    (bars,) = figure_of({**found, "rows": rows[:1]}, "t_ns", "GB/s").axes
    assert (bars.get_xscale(), bars.get_xlabel()) == ("log", "t[usec]")


def test_files__name_what_they_need_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("matplotlib", "jinja2"):
        monkeypatch.setitem(sys.modules, module, None)
    need_drawing(None, None)
    plot, page = Path("a.svg"), Path("a.html")
    for given in ((plot, None), (None, page), (plot, page)):
        with pytest.raises(click.ClickException, match=r"pip install 'weft\[plots\]'"):
            need_drawing(*given)


def test_render__refuses_a_changed_result(tmp_path: Path) -> None:
    found = result("x", [1.0])
    found["rows"][0]["runs"] = 7
    done = call("render", write(tmp_path / "x.json", found))
    assert done.exit_code == 1
    assert "hash mismatch" in done.output


def test_stats__median_least_largest_worst() -> None:
    rows = [{"k": "a", "round": i, "t_ns": t, "wrong": 1} for i, t in enumerate((5, 1, 9))]
    (row,) = stats.summarised(rows, ["k"], {"t_ns": "lower"})
    assert (row["t_ns"], row["t_ns_min"], row["t_ns_max"]) == (5, 1, 9)
    assert (row["worst"], row["runs"], row["wrong"]) == (9, 3, 3)
    assert row["spread"] == pytest.approx(8 / 5)


def test_options__sizes_and_sweeps() -> None:
    kind = Size()
    assert [kind.convert(text, None, None) for text in ("8", "4K", "2MiB", "1g")] == [
        *(8, 4_096, 2 << 20, 1 << 30)
    ]
    for text in ("", "K", "1T", "-1", "0", "2G", "1.5M"):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)
    assert sweep(1_024, 70_000, 4) == [1_024, 4_096, 16_384, 65_536]
    with pytest.raises(click.UsageError, match="more than 64 sizes"):
        sweep(1, 1 << 80, 2)


def test_options__units() -> None:
    shown = [show("rate_bytes_per_s", 1.25e9, units) for units in ("GB/s", "Gb/s", "MiB/s")]
    assert shown == ["1.250", "10.000", "1192.1"]
    assert show("time_ns", 1_500) == "1.50"
    assert show("cpu_share", 0.5) == "50 %"


def test_report__csv_joins_lists() -> None:
    text = csv_of_rows([{"a": 1, "b": [1.5, 2]}, {"a": None, "c": "x,y"}])
    assert text == 'a,b,c\n1,1.5 2,\n,,"x,y"\n'


def test_rounds__a_round_is_whole() -> None:
    assert [name for _, name in rounds(2, ["a", "b"])] == ["a", "b", "a", "b"]


def test_placement__cores_are_shared_out() -> None:
    usable = sorted(os.sched_getaffinity(0))
    places = loopback(3)
    assert len({place.name for place in places}) == 3
    assert all(set(place.cores) <= set(usable) and place.cores for place in places)
    with pytest.raises(click.UsageError, match="this experiment needs 3"):
        placed(3, places[:2])


def test_placement__file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "places.json"
    path.write_text(json.dumps([{"address": "127.0.0.1", "interfaces": "lo"}, {"name": "b"}]))
    assert [place.name for place in read_places(path)] == ["n0", "b"]
    for text, said in (
        ("{", "places.json"),
        ("{}", "must be a list"),
        ("[1]", "must be a JSON object"),
        ('[{"adress": "1"}]', "no field 'adress'"),
        ('[{"address": "host.example"}]', "must be an IP address"),
        ('[{"cores": [100000]}]', "cores must be among"),
        ('[{"namespace": "/nosuch"}]', "no namespace /nosuch"),
    ):
        path.write_text(text)
        with pytest.raises(click.UsageError, match=said.replace("[", r"\[")):
            read_places(path)


def test_placement__a_study_runs_inside_a_namespace(tmp_path: Path) -> None:
    command = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 120"]
    if os.geteuid() != 0:
        pytest.skip("needs the right to create network namespaces: run it as root")
    try:
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        pytest.skip("needs unshare: apt-get install util-linux")
    with holder:
        try:
            assert holder.stdout is not None
            if holder.stdout.readline() != "up\n":
                pytest.skip("no network namespace can be made here, or ip is missing (iproute2)")
            namespace = f"/proc/{holder.pid}/ns/net"
            assert os.readlink(namespace) != os.readlink("/proc/self/ns/net")
            place = Placement("inside", enter=EnterNamespace(namespace))
            with program(["readlink", "/proc/self/ns/net"], place) as asked:
                assert asked.communicate(timeout=PATIENCE_S)[0].strip() == os.readlink(namespace)
            path = tmp_path / "places.json"
            path.write_text(json.dumps([{"namespace": namespace}] * 2))
            done = call("cpu", "--tiny", "--place", path, "--json", "-")
            assert done.exit_code == 0, done.output
            assert [row["contender"] for row in json.loads(done.stdout)["rows"]] == [
                *("weft", "tcp-cubic")
            ]
        finally:
            holder.kill()


def test_placement__a_namespace_that_is_none() -> None:
    with pytest.raises(OSError, match="cannot enter /dev/null"):
        EnterNamespace("/dev/null")()


def test_peers__what_is_missing_and_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert missing("iperf3") == "no iperf3 here: apt-get install iperf3"
    assert "build fabtests" in str(missing("fi_rdm_tagged_bw"))
    there, without = present(["weft", "ucx_perftest"])
    assert there == ["weft"]
    assert [one["contender"] for one in without] == ["ucx_perftest"]

    def refuse(*_: object) -> None:
        raise OSError(93, "Protocol not supported")

    monkeypatch.setattr("socket.socket", refuse)
    assert "no MPTCP (protocol not supported)" in str(mptcp.PEERS[0].missing())


def test_peers__a_congestion_control_that_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "known").write_text("reno cubic\n")
    monkeypatch.setattr(tcp, "AVAILABLE", tmp_path / "known")
    assert missing("tcp-cubic") is None
    assert "modprobe tcp_bbr" in str(missing("tcp-bbr-x4"))
    assert "modprobe tcp_bbr" in present(["2 weft + 2 tcp-bbr"])[1][0]["missing"]


def test_peers__names_are_unique() -> None:
    assert len(ALL) == len(SOCKETS) + len(PROGRAMS)


def test_iperf3__its_json() -> None:
    said = {
        "start": {"test_start": {"blksize": 1_000_000}},
        "intervals": [{"sum": {"bits_per_second": 24e9}}, {"sum": {"bits_per_second": 8e9}}],
        "end": {
            "sum_received": {"bits_per_second": 16e9, "bytes": 2_000_000_000},
            "sum_sent": {"retransmits": 7},
        },
    }
    row = iperf3.Iperf3.row(said, COST)
    assert (row["rate_bytes_per_s"], row["peak_bytes_per_s"]) == (2e9, 3e9)
    assert (row["iterations"], row["retransmitted_segments"]) == (2_000, 7)
    assert (row["sender_cpu_s_per_gbyte"], row["receiver_cpu_s_per_gbyte"]) == (0.5, 1.0)
    with pytest.raises(click.ClickException, match="lacks the end report"):
        iperf3.Iperf3.row({"end": {}}, COST)
    with pytest.raises(click.ClickException, match="unable to connect"):
        iperf3.parsed('{"error": "unable to connect"}')
    with pytest.raises(click.ClickException, match="not JSON"):
        iperf3.parsed("iperf3: bad")


def test_libfabric__its_table() -> None:
    text = (
        "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
        "64k     1k      =1k      125m       12.85s     10.20    6423.62       0.00\n"
    )
    pingpong, bandwidth = libfabric.PEERS
    row = pingpong.row(text, 65_536, COST)
    assert row["iterations"] == 1_024
    assert row["rate_bytes_per_s"] == pytest.approx(2 * 1_024 * 65_536 / 12.85)
    half = bandwidth.row(text, 65_536, COST)
    assert half["rate_bytes_per_s"] == pytest.approx(row["rate_bytes_per_s"] / 2)
    with pytest.raises(click.ClickException, match="no table"):
        pingpong.row("fi_getinfo: No data available", 8, COST)


def test_ucx__its_csv() -> None:
    text = (
        "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n"
        " 2000,0.461,1008.868,1968.722,991.21,500.00,991,508\n"
    )
    row = ucx.PEERS[0].row(text, 1 << 20, COST)
    assert row["rate_bytes_per_s"] == 500 * 2**20
    assert row["iterations"] == 2_000
    with pytest.raises(click.ClickException, match="no CSV"):
        ucx.PEERS[0].row("error", 8, COST)


def test_docs__bench_page_names_every_bench_and_peer() -> None:
    page = (RESULTS.parents[1] / "docs" / "BENCH.md").read_text()
    for name in (*BENCHES, *TOOLS, *ALL):
        assert name == "weft" or f"`{name}" in page, f"docs/BENCH.md says nothing of {name}"
