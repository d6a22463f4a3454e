"""Tests the plugin's interface to NCCL: all versions, in one and two processes, and failures."""

import subprocess
from pathlib import Path

import pytest

from transport.policies.recording import read

from .conftest import Play

VERSIONS = (6, 7, 8, 9, 10, 11, 12)
# Behaviour that is the same in all interface versions is tested with the oldest and the newest.
ENDS = (6, 12)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["transfer", "bad_arguments", "contexts", "properties"])
def test_fake__every_step_may_say_not_now(
    play: Play, fake_plugin: Path, version: int, scenario: str
) -> None:
    play(fake_plugin, version, 1, scenario)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "scenario",
    ["oversized", "close_outstanding", "uneven_close", "hammer", "restart", "peer_closes"],
)
def test_fake__endings(play: Play, fake_plugin: Path, version: int, scenario: str) -> None:
    play(fake_plugin, version, 1, scenario)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("scenario", ["transfer", "close_outstanding", "contexts"])
def test_plugin__moves_data(
    play: Play, plugin: Path, version: int, processes: int, scenario: str
) -> None:
    play(plugin, version, processes, scenario)


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    "scenario", ["large", "hammer", "uneven_close", "oversized", "bad_arguments", "peer_closes"]
)
def test_plugin__edges(
    play: Play, plugin: Path, version: int, processes: int, scenario: str
) -> None:
    play(plugin, version, processes, scenario)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["properties", "forked", "restart"])
def test_plugin__life_of_a_process(play: Play, plugin: Path, version: int, scenario: str) -> None:
    play(plugin, version, 2, scenario)


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize("scenario", ["strays", "death"])
def test_plugin__strangers_and_deaths(
    play: Play, plugin: Path, version: int, scenario: str
) -> None:
    play(plugin, version, 2, scenario, WEFT_PEER_TIMEOUT="silence=3s")


@pytest.mark.parametrize("version", ENDS)
def test_plugin__every_line_goes_to_the_logger_of_nccl(
    play: Play, plugin: Path, version: int
) -> None:
    """NCCL's logger gets all lines, also of engine threads, but none after the last finalize."""
    done = play(plugin, version, 2, "strays", WEFT_LOG_LEVEL="debug")
    assert "log 2 NET/weft: dropped an unknown peer at the control port" in done.stderr
    assert all(line.startswith("log ") for line in done.stderr.splitlines())


@pytest.mark.parametrize("version", ENDS)
def test_plugin__moves_data_over_a_bad_network(play: Play, plugin: Path, version: int) -> None:
    faults = {
        "WEFT_FAULT": "loss=0.02,reorder=0.05,duplicate=0.02,corrupt=0.01",
    }
    play(plugin, version, 2, "transfer", **faults)


def test_plugin__a_misspelt_knob_makes_init_fail_aloud(play: Play, plugin: Path) -> None:
    done = play(plugin, 12, 2, "refused", WEFT_PTHS="3")
    assert "did you mean WEFT_PATHS?" in done.stderr


def test_plugin__without_a_device_it_declines(play: Play, plugin: Path) -> None:
    done = play(plugin, 12, 2, "refused", WEFT_INTERFACES="nosuch0")
    assert "nosuch0" in done.stderr


def test_plugin__says_once_what_it_uses(play: Play, plugin: Path) -> None:
    done = play(plugin, 12, 1, "contexts")
    assert done.stderr.count("log 3 NET/weft: ") == 1


CLASSES = "3 window=fixed:window_bytes=200000 path=oblivious; 7 loss=fixed"


@pytest.mark.parametrize("version", VERSIONS)
def test_plugin__a_traffic_class_chooses_its_policies(
    play: Play, plugin: Path, version: int, tmp_path: Path
) -> None:
    """Recordings show which policies ran. In version 10 only the dialling end has a class."""

    def decided(traffic_class: str) -> dict[str, set[str]]:
        variables = {
            "WEFT_TRAFFIC_CLASSES": CLASSES,
            "WEFT_RECORD_FILE": str(tmp_path / f"class{traffic_class}-%p"),
            "HOST_TRAFFIC_CLASS": traffic_class,
        }
        play(plugin, version, 2, "transfer", **variables)
        names: dict[str, set[str]] = {"window": set(), "path": set(), "loss": set()}
        for file in tmp_path.glob(f"class{traffic_class}-*"):
            for family, found in read(file).policies().items():
                names[family] |= set(found)
        return names

    usual = {"window": {"swift"}, "path": {"power_of_two"}, "loss": {"rack"}}
    assert decided("-1") == usual
    assert decided("5") == usual
    chosen = decided("3")
    if version < 10:
        assert chosen == usual
    else:
        assert chosen["loss"] == {"rack"}
        assert chosen["window"] >= {"fixed"}
        assert chosen["path"] >= {"oblivious"}
    if version > 10:
        assert chosen == usual | {"window": {"fixed"}, "path": {"oblivious"}}
        assert decided("7") == usual | {"loss": {"fixed"}}


def test_plugin__a_traffic_class_that_names_no_policy_is_refused(play: Play, plugin: Path) -> None:
    done = play(plugin, 12, 2, "refused", WEFT_TRAFFIC_CLASSES="3 window=teleport")
    assert "class 3: no window policy 'teleport'" in done.stderr


def exported(library: Path) -> set[str]:
    listing = subprocess.run(
        ["nm", "--dynamic", "--defined-only", str(library)],
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.split()[-1] for line in listing.stdout.splitlines()}


def needed(library: Path) -> set[str]:
    listing = subprocess.run(
        ["readelf", "--dynamic", "--wide", str(library)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = listing.stdout.splitlines()
    return {line.split("[")[1].rstrip("]") for line in lines if "(NEEDED)" in line}


@pytest.mark.parametrize("kind", ["plugin", "fake_plugin"])
def test_plugin__exports_the_tables_and_nothing_else(
    request: pytest.FixtureRequest, kind: str
) -> None:
    library: Path = request.getfixturevalue(kind)
    tables = {f"ncclNetPlugin_v{version}" for version in VERSIONS}
    tables |= {f"ncclProfiler_v{version}" for version in range(1, 8)}
    tables |= {f"ncclTunerPlugin_v{version}" for version in (5, 6)}
    assert exported(library) == tables


def test_plugin__needs_the_c_library_alone(plugin: Path) -> None:
    allowed = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libibverbs.so.1"}
    allowed |= {"libpthread.so.0", "libdl.so.2"}
    assert needed(plugin) <= allowed


def test_plugin__is_never_unmapped(plugin: Path) -> None:
    listing = subprocess.run(
        ["readelf", "--dynamic", str(plugin)], capture_output=True, text=True, check=True
    )
    assert "NODELETE" in listing.stdout
