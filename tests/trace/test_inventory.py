"""Tests inventories: what they say of ranks and hosts, and the errors of wrong ones."""

import contextlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, strategies as st

from tests.diagnose.support import traced
from transport.cli import weft
from transport.ground import toml
from transport.trace.inventory import Inventory, InventoryError, pci_of, read

TEXT = """
[hosts.node7]
rack = "r2"
ranks = "0-1"
gpus = ["0000:1B:00.0", "3b:00"]
[hosts.node7.nics]
mlx5_0 = {switch = "leaf3", port = "Eth1/7", ranks = 0}
mlx5_1 = {switch = "leaf4", port = 7, ranks = [1]}

[hosts."node8.example.org"]
rack = 3
ranks = "2, 4-5"
"""


def made(folder: Path, text: str = TEXT) -> Inventory:
    file = folder / "inventory.toml"
    file.write_text(text)
    return read(file)


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(weft, [str(word) for word in words])


def test_inventory__a_rank_has_its_host_gpu_nic_and_port(tmp_path: Path) -> None:
    found = made(tmp_path)
    spot = found.spot(1)
    assert spot.as_json() == {
        "rank": 1,
        "host": "node7",
        "rack": "r2",
        "gpu": "0000:3b:00",
        "nics": [{"nic": "mlx5_1", "switch": "leaf4", "port": "7"}],
    }
    assert found.spot(4).rack == "3"
    assert (found.spot(99).host, found.spot(99).rack) == ("?", "?")


def test_inventory__hosts_are_found_by_their_short_names(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert found.rack("node8") == "3"
    assert found.rack("node7.example.org") == "r2"
    assert found.rack("node8.elsewhere.org") == "?"
    assert found.rack("node9") == "?"


def test_inventory__the_trace_is_right_about_hosts(tmp_path: Path) -> None:
    found = made(tmp_path)
    moved = found.spot(0, "node8", [0, 7])
    assert (moved.host, moved.rack, moved.gpu, moved.nics) == ("node8", "3", "?", ())
    assert found.moved([(0, "node8"), (2, "node8")]) == [
        "the inventory is of another placement: rank 0 ran on node8, not on node7; the trace counts"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[host.a]", "host: there is no such key; did you mean hosts?"),
        ('[hosts.a]\nrak = "r"', "hosts.a.rak: there is no such key; did you mean rack?"),
        ("[hosts.a.nics]\nm = {swich = 'x'}", "hosts.a.nics.m.swich: there is no such key; did"),
        ("", "it has no hosts"),
        ("hosts = 3", "hosts: 3: expected a table"),
        ('[hosts.a]\nranks = "0-2, 1"', "hosts.a.ranks: rank 1 is named twice"),
        ('[hosts.a]\nranks = "0"\n[hosts.b]\nranks = 0', "rank 0 is on two hosts, a and b"),
        ('[hosts.a]\nranks = "3-1"', "expected increasing ranks"),
        ("[hosts.a]\nranks = true", "hosts.a.ranks: True: expected ranks such as"),
        ("[hosts.a]\nranks = {}", "hosts.a.ranks: {}: expected ranks such as"),
        ('[hosts.a]\ngpus = ["x"]', "expected a PCI address"),
        ('[hosts.a]\nranks = "0-1"\ngpus = ["1b:00"]', "has 2 ranks and 1 gpus"),
        ("[hosts.a]\nrack = 1.5", "hosts.a.rack: 1.5: expected text in quotes"),
        (
            "[hosts.a]\nranks = 0\nnics = {m = {ranks = 5}}",
            "rank 5 is not among the ranks of its host",
        ),
        (
            '[hosts.a]\nnics = {m = {switch="l", port="1"}, n = {switch="l", port="1"}}',
            "m of a and n of a are at one port: switch l port 1",
        ),
        ("[hosts.a]\n[hosts.a]", "is not TOML"),
    ],
)
def test_inventory__a_wrong_one_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InventoryError) as error:
        made(tmp_path, text)
    assert said in str(error.value)
    assert "inventory.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_inventory__a_missing_file_is_wrong_usage(tmp_path: Path) -> None:
    done = run("trace", "matrix", tmp_path, "--inventory", tmp_path / "none.toml")
    assert done.exit_code == 2
    assert "--inventory: cannot read" in done.output


def test_inventory__pci_addresses_have_one_form() -> None:
    assert pci_of("PCI:0000:3B:00") == pci_of("00000000:3b:00.0") == pci_of("3b:00") == "0000:3b:00"
    assert pci_of("GPU 3") == ""


def test_inventory__the_example_of_the_docs_is_right(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "DIAGNOSIS.md").read_text()
    text = page.partition("## Inventory")[2].partition("```toml\n")[2].partition("```")[0]
    found = made(tmp_path, text)
    assert (found.spot(0).gpu, found.rack("node8")) == ("0000:1b:00", "r3")


VALUES = st.recursive(
    st.booleans() | st.integers(-5, 1 << 40) | st.text(max_size=6) | st.just("0-3"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["rack", "ranks", "gpus", "nics", "switch", "port", "m", "hosts"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["a", "b"]), VALUES, max_size=2))
def test_inventory__odd_values_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, hosts: dict[str, object]
) -> None:
    file = tmp_path_factory.mktemp("odd") / "inventory.toml"
    try:
        file.write_text(toml.written({"hosts": hosts}), encoding="utf-8")
    except TypeError:
        return  # a list of tables and values
    with contextlib.suppress(InventoryError):
        assert read(file).hosts.keys() == hosts.keys()


def racks(folder: Path) -> Path:
    """An inventory of the simulated job: its first 8 hosts in a rack, the next 16 in another."""
    file = folder / "inventory.toml"
    first = [f'[hosts.host{at}]\nrack = "a"\n' for at in range(8)]
    second = [f'[hosts.host{at}]\nrack = "b"\n' for at in range(8, 24)]
    nic = '[hosts.host21.nics]\nmlx5_0 = {switch = "leaf3", port = "Eth1/7"}\n'
    file.write_text("".join([*first, *second, nic]))
    return file


def test_inventory__matrices_by_rack_and_with_borders(tmp_path: Path) -> None:
    folder = traced(tmp_path / "t")
    file = racks(tmp_path)
    found = json.loads(
        run("trace", "matrix", folder, "--by", "rack", "--inventory", file, "--json", "-").output
    )
    assert (found["by"], found["labels"]) == ("rack", ["a", "b", "?"])
    whole = json.loads(run("trace", "matrix", folder, "--json", "-").output)
    assert sum(cell["value"] for cell in found["cells"]) == sum(
        cell["value"] for cell in whole["cells"]
    )
    assert whole["racks"] == []
    done = run("trace", "matrix", folder, "--inventory", file)
    assert "racks: a: 0 to 7; b: 8 to 23; ?: 24 to 31" in done.output
    assert "+".join(["-" * 8, "-" * 16, "-" * 8]) in done.output
    page = tmp_path / "matrix.html"
    assert run("trace", "matrix", folder, "--inventory", file, "--html", page).exit_code == 0
    assert '"borders": [[8, "rack"], [24, "rack"]]' in page.read_text()
    done = run("trace", "matrix", folder, "--by", "rack")
    assert (done.exit_code, "--by rack needs --inventory" in done.output) == (2, True)


def test_inventory__verdicts_name_rack_nic_and_port(tmp_path: Path) -> None:
    fault = {"kind": "slow_nic", "rank": 21, "at_ns": 4_000_000, "rate_factor": 0.15}
    folder = traced(tmp_path / "t", fault)
    file = racks(tmp_path)
    done = run("diagnose", folder, "--inventory", file)
    assert "NIC mlx5_0 of rank 21 on host21, rack b, switch leaf3 port Eth1/7" in done.output
    found = json.loads(run("diagnose", folder, "--inventory", file, "--json", "-").output)
    place = found["findings"][0]["place"]
    assert place["name"] == "NIC of rank 21"
    assert place["inventory"][0]["nics"] == [{"nic": "mlx5_0", "switch": "leaf3", "port": "Eth1/7"}]
    plain = json.loads(run("diagnose", folder, "--json", "-").output)
    assert plain["findings"][0]["place"]["inventory"] == []


def test_inventory__lost_time_has_racks(tmp_path: Path) -> None:
    fault = {"kind": "straggler", "rank": 30, "at_step": 1, "compute_factor": 2}
    folder = traced(tmp_path / "t", fault)
    file = racks(tmp_path)
    done = run("diagnose", folder, "--lost-time", "--inventory", file)
    rows = [line.split() for line in done.output.splitlines()]
    assert rows[1][:3] == ["RANK", "HOST", "RACK"]
    assert rows[2][:3] == ["30", "host30", "?"]
    words = ("diagnose", folder, "--lost-time", "--inventory", file, "--json", "-")
    found = json.loads(run(*words).output)
    assert found["racks"][0]["rack"] == "?"
    assert found["ranks"][0]["inventory"]["host"] == "host30"
