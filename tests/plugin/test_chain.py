"""Tests a profiler that is chained behind weft's with WEFT_PROFILER_CHAIN."""

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.environment import clean_environment
from transport.trace import read_segment

from .conftest import PATIENCE_S, built

VERSIONS = (2, 3, 4, 5, 6, 7)  # interface versions of the chained profiler
OPERATES = 5  # profiled AllReduces: one in the main thread, one in each of four threads
COLLECTIVE, POINT_TO_POINT, PROXY_OP, PROXY_STEP, KERNEL, API = 2, 4, 8, 16, 64, 512
GROUP_API = 256


@pytest.fixture(scope="session")
def host(build_tree: Path) -> Path:
    return built(build_tree / "weft_profiler_host")


@pytest.fixture(scope="session")
def chained(build_tree: Path) -> Path:
    return built(build_tree / "libweft_profiler_chained.so")


def profile(
    host: Path, plugin: Path, version: int, **variables: str
) -> subprocess.CompletedProcess[str]:
    clean = clean_environment()
    return subprocess.run(
        [str(host), str(plugin), str(version)],
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def counts_of(folder: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / "report.json").read_text())
    return found


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "untraced"])
@pytest.mark.parametrize("version", VERSIONS)
def test_chain__the_chained_profiler_gets_every_event_with_its_own_handles(
    host: Path, plugin: Path, chained: Path, version: int, traced: bool, tmp_path: Path
) -> None:
    variables = {
        "WEFT_PROFILER_CHAIN": str(chained),
        "CHAIN_REPORT": str(tmp_path / "report.json"),
    }
    if traced:
        variables["WEFT_TRACE"] = str(tmp_path / "trace")
        (tmp_path / "trace").mkdir()
    done = profile(host, plugin, version, **variables)
    assert done.returncode == 0, done.stderr
    counts = counts_of(tmp_path)
    assert not [name for name in counts if name.startswith("foreign")], counts
    assert counts["finalized"] == 1
    # One more AllReduce is still open when the communicator ends.
    assert counts[f"started {COLLECTIVE}"] == OPERATES + 1
    assert counts[f"started {POINT_TO_POINT}"] == counts[f"stopped {POINT_TO_POINT}"] == OPERATES
    # Four channels of an AllReduce and one of a Send; six steps each, which start twice.
    assert counts[f"stopped {PROXY_STEP}"] == OPERATES * 5 * 6
    assert counts[f"started {PROXY_STEP}"] >= OPERATES * 5 * 6 * 2
    assert counts[f"stopped {PROXY_OP}"] >= OPERATES * 5
    if version >= 4:
        assert counts[f"started {KERNEL}"] == counts[f"stopped {KERNEL}"] == OPERATES * 2
    if version >= 5:
        assert counts[f"started {API}"] == OPERATES
        assert counts["groups"] == OPERATES


@pytest.mark.parametrize("version", VERSIONS)
def test_chain__the_trace_is_the_same_as_without_it(
    host: Path, plugin: Path, chained: Path, version: int, tmp_path: Path
) -> None:
    shapes = []
    for name, variables in (
        ("alone", {}),
        ("chained", {"WEFT_PROFILER_CHAIN": str(chained)}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        done = profile(host, plugin, version, WEFT_TRACE=str(folder), **variables)
        assert done.returncode == 0, done.stderr
        (path,) = folder.iterdir()
        records = read_segment(path).records
        names = {one.id: one.fields["function"] for one in records if one.kind == "operation"}
        shape = Counter(
            (one.kind, str(one.fields.get("bytes")), names.get(int(one.fields.get("operation", 0))))
            for one in records
            if one.kind not in ("text", "kernel")
        )
        shapes.append(shape)
    # Weft's profiler does not want kernels, so it does not get those that the chained one wants.
    assert not [one for one in records if one.kind == "kernel"]
    assert shapes[0] == shapes[1]


def test_chain__a_mask_that_changes_at_run_time_reaches_nccl(
    host: Path, plugin: Path, chained: Path
) -> None:
    """The chained profiler wants only operations, and after the first one all events."""
    done = profile(host, plugin, 5, WEFT_PROFILER_CHAIN=str(chained), CHAIN_FAULT="mask")
    assert done.returncode == 0, done.stderr
    assert "mask 0xfff" in done.stderr


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "untraced"])
@pytest.mark.parametrize("version", VERSIONS)
def test_chain__a_profiler_may_choose_its_first_events_after_init(
    host: Path, plugin: Path, chained: Path, version: int, traced: bool, tmp_path: Path
) -> None:
    variables = {
        "WEFT_PROFILER_CHAIN": str(chained),
        "CHAIN_REPORT": str(tmp_path / "report.json"),
        "CHAIN_FAULT": "late",
    }
    if traced:
        variables["WEFT_TRACE"] = str(tmp_path / "trace")
    done = profile(host, plugin, version, HOST_PLAY="enables", **variables)
    assert done.returncode == 0, done.stderr
    counts = counts_of(tmp_path)
    assert not [name for name in counts if name.startswith("foreign")], counts
    assert counts[f"started {COLLECTIVE}"] == OPERATES + 1
    assert counts[f"stopped {PROXY_STEP}"] == OPERATES * 5 * 6


@pytest.mark.parametrize("version", [5, 6, 7])
def test_chain__many_events_hide_no_captured_call_and_no_open_group(
    host: Path, plugin: Path, chained: Path, version: int, tmp_path: Path
) -> None:
    variables = {
        "WEFT_PROFILER_CHAIN": str(chained),
        "CHAIN_REPORT": str(tmp_path / "report.json"),
        "WEFT_TRACE": str(tmp_path / "trace"),
    }
    done = profile(host, plugin, version, HOST_PLAY="many", **variables)
    assert done.returncode == 0, done.stderr
    counts = counts_of(tmp_path)
    assert not [name for name in counts if name.startswith("foreign")], counts
    assert counts[f"started {GROUP_API}"] == counts[f"stopped {GROUP_API}"] == 1
    assert counts[f"children {COLLECTIVE}"] == OPERATES + 1
    (path,) = (tmp_path / "trace").iterdir()
    captured = {
        one.fields["sequence"]: one.fields["captured"]
        for one in read_segment(path).records
        if one.kind == "operation" and int(one.fields["sequence"]) > 1000
    }
    assert captured == {1001: 1, 1002: 0}
    assert done.stderr.count("not recorded, or without their parent: 1") == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_chain__a_later_communicator_loses_no_events_of_those_that_run(
    host: Path, plugin: Path, chained: Path, version: int, tmp_path: Path
) -> None:
    variables = {"WEFT_TRACE": str(tmp_path), "WEFT_PROFILER_CHAIN": str(chained)}
    done = profile(host, plugin, version, HOST_PLAY="joins", **variables)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("fault", ["init", "start"])
def test_chain__a_profiler_that_fails_does_not_stop_the_trace(
    host: Path, plugin: Path, chained: Path, fault: str, tmp_path: Path
) -> None:
    done = profile(
        host,
        plugin,
        5,
        WEFT_TRACE=str(tmp_path),
        WEFT_PROFILER_CHAIN=str(chained),
        CHAIN_FAULT=fault,
    )
    assert done.returncode == 0, done.stderr
    assert ("cannot profile this communicator" in done.stderr) == (fault == "init")
    (path,) = tmp_path.iterdir()
    records = read_segment(path).records
    assert len([one for one in records if one.kind == "operation"]) == 2 * OPERATES + 1


@pytest.mark.parametrize(
    ("fault", "status"), [("segv", -11), ("abort", -6), ("overflow", -11), ("thread_overflow", -11)]
)
def test_chain__a_crash_of_the_chained_profiler_is_attributed(
    host: Path, plugin: Path, chained: Path, fault: str, status: int, tmp_path: Path
) -> None:
    done = profile(
        host,
        plugin,
        5,
        WEFT_TRACE=str(tmp_path),
        WEFT_PROFILER_CHAIN=str(chained),
        CHAIN_FAULT=fault,
    )
    assert done.returncode == status
    assert done.stderr.count("crashed in a call of the profiler that WEFT_PROFILER_CHAIN") == 1
    assert str(chained) in done.stderr


@pytest.mark.parametrize(("fault", "status"), [("", 0), ("segv", -11), ("abort", -6)])
def test_chain__a_signal_that_the_program_ignores_stays_ignored(
    host: Path, plugin: Path, chained: Path, fault: str, status: int
) -> None:
    """weft then has no handler for SIGABRT, so a crash by abort() is not attributed; others are."""
    variables = {"WEFT_PROFILER_CHAIN": str(chained), "CHAIN_FAULT": fault}
    done = profile(host, plugin, 5, HOST_PLAY="ignores", **variables)
    assert done.returncode == status, done.stderr
    assert done.stderr.count("crashed in a call of the profiler") == (fault == "segv")


@pytest.mark.parametrize(("part", "attributed"), [("twins", 1), ("crashes", 0)])
def test_chain__a_crash_is_attributed_by_its_thread(
    host: Path, plugin: Path, chained: Path, part: str, attributed: int
) -> None:
    """One of two threads in the chained profiler crashes, or a thread crashes outside of it."""
    variables = {"WEFT_PROFILER_CHAIN": str(chained), "CHAIN_FAULT": part}
    done = profile(host, plugin, 5, HOST_PLAY=part, **variables)
    assert done.returncode == -11
    assert done.stderr.count("crashed in a call of the profiler") == attributed


@pytest.mark.parametrize(
    ("version", "chain", "said"),
    [
        (5, "/nowhere/profiler.so", "No such file or directory"),
        (5, "nothing", "cannot load it: nothing: "),
        (5, "libm.so.6", "it is no profiler plugin"),
        (5, "{plugin}", "it is weft's own profiler"),
        (1, "{chained}", "version 1"),
    ],
)
def test_chain__a_library_that_cannot_be_used_is_said_once(
    host: Path, plugin: Path, chained: Path, version: int, chain: str, said: str, tmp_path: Path
) -> None:
    """Version 1 of the interface has no logger, so only the trace shows that profiling works."""
    named = chain.format(plugin=plugin, chained=chained)
    done = profile(host, plugin, version, WEFT_TRACE=str(tmp_path), WEFT_PROFILER_CHAIN=named)
    assert done.returncode == 0, done.stderr
    if version > 1:
        assert f"WEFT_PROFILER_CHAIN={named} is not called: {said}" in done.stderr
        assert done.stderr.count("is not called") == 1
    (path,) = tmp_path.iterdir()
    assert len(read_segment(path).records) > 50
