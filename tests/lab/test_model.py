"""Tests parsing of lab files: the resulting model, and one-line errors for wrong files."""

from pathlib import Path

import pytest

from transport.ground.units import bit_rate_text
from transport.lab import LabError, LabModel, LabModelError, Link, load
from transport.lab.model import LINK_KEYS, as_dict, from_dict, parse, rate_of
from transport.lab.plan import Plan

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples" / "labs").glob("*.toml"))


def test_model__defaults_need_no_file() -> None:
    model = LabModel()
    assert (model.hosts, model.spines, model.leaves) == (2, 4, 2)
    assert model.link("leaf0-spine3").rate_bytes_per_s == 125_000_000
    assert parse({}) == model


def test_model__links_have_names() -> None:
    model = LabModel(hosts=3, spines=2, hosts_per_leaf=2)
    assert model.link_names() == [
        *("host0-leaf0", "host1-leaf0", "host2-leaf1"),
        *("leaf0-spine0", "leaf0-spine1", "leaf1-spine0", "leaf1-spine1"),
    ]
    assert model.nodes()[:4] == ["host0", "host1", "host2", "leaf0"]


def test_model__a_file_says_classes_and_exceptions(tmp_path: Path) -> None:
    file = tmp_path / "Two Speeds.toml"
    file.write_text(
        'hosts = 4\nhosts_per_leaf = 2\nspines = 3\n[uplinks]\nrate = "8 Gb/s"\nloss = 0.01\n'
        '[links."leaf0-spine2"]\nrate = 1_000_000\n[links."host1-leaf0"]\nloss_every = 7\n'
    )
    model = load(file)
    assert model.name == "two-speeds"
    assert model.link("leaf1-spine2") == Link(rate_bytes_per_s=10**9, loss=0.01)
    assert model.link("leaf0-spine2") == Link(rate_bytes_per_s=10**6, loss=0.01)
    assert model.link("host1-leaf0") == model.host_links.changed(loss_every=7)
    assert model.link("host0-leaf0") == model.host_links
    assert from_dict(as_dict(model)) == model


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        *(
            ("8 Gb/s", 10**9),
            ("1GB/s", 10**9),
            ("100 Mbit/s", 12_500_000),
            ("0.5 Gbps", 62_500_000),
        ),
        *((125_000, 125_000), ("2.5 Tb/s", 312_500_000_000), ("8 kb/s", 1_000)),
    ],
)
def test_model__rates(text: str | int, bytes_per_s: int) -> None:
    assert rate_of("rate", text) == bytes_per_s
    assert rate_of("rate", bit_rate_text(bytes_per_s)) == bytes_per_s


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("hots = 2", "a lab has no key hots; did you mean hosts?"),
        ("hosts = 0", "hosts = 0: expected a whole number from 1 to 65536"),
        ("hosts = true", "hosts = True: expected a whole number from 1 to 65536"),
        ('name = "A lab"', "name = 'A lab': expected at most 32 of a-z, 0-9, - and _"),
        ("uplinks = 3", "[uplinks] expected a table, not 3"),
        ("[uplinks]\nrait = 3", "[uplinks] a link has no key rait; did you mean rate?"),
        ('[uplinks]\nrate = "fast"', "[uplinks] rate = 'fast': expected a rate: bytes/s"),
        ("[uplinks]\nrate = 10", "from 1,000 to 1,000,000,000,000 bytes/s"),
        ("[uplinks]\nloss = 2", "[uplinks] loss = 2: expected a number from 0 to 1"),
        ("[uplinks]\nloss = nan", "[uplinks] loss = nan: expected a number from 0 to 1"),
        ("[uplinks]\nloss_every = 1.5", "loss_every = 1.5: expected a whole number from 0"),
        ("[uplinks]\necn_bytes = 9_000_000", "ecn_bytes 9000000 is more than queue_bytes 524288"),
        ("[host_links]\nqueue_bytes = 1000", "queue_bytes 1000 is less than a packet"),
        ("[uplinks]\nburst_enter = 0.1\nburst_leave = 0", "a loss burst would never end"),
        ('[links."leaf0-spin2"]', '[links."leaf0-spin2"] no such link; did you mean leaf0-spine2?'),
        ('[links."leaf0-spine2"]\nlos = 1', '[links."leaf0-spine2"] a link has no key los'),
        ("hosts = ", "is not TOML"),
    ],
)
def test_model__what_is_wrong_is_said_in_a_line(tmp_path: Path, content: str, line: str) -> None:
    file = tmp_path / "lab.toml"
    file.write_text(content + "\n")
    with pytest.raises(LabModelError) as raised:
        load(file)
    assert str(raised.value).startswith(f"{file}")
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_model__offload_and_loss_exclude_each_other() -> None:
    model = LabModel(segmentation_offload=True)
    assert from_dict(as_dict(model)) == model
    for link in (Link(loss=0.01), Link(loss_every=9), Link(burst_enter=0.1), Link(corruption=0.1)):
        with pytest.raises(
            LabModelError, match="leaf0-spine0: with segmentation_offload each loss"
        ):
            LabModel(segmentation_offload=True, uplinks=link)
    with pytest.raises(LabModelError, match="expected true or false"):
        parse({"segmentation_offload": 1})


def test_model__no_file(tmp_path: Path) -> None:
    with pytest.raises(LabModelError, match="No such file or directory: give a lab file"):
        load(tmp_path / "none.toml")


def test_model__a_field_that_no_link_has() -> None:
    with pytest.raises(LabModelError, match="did you mean rate_bytes_per_s"):
        Link().changed(rate_bytes=1)
    assert {key.field for key in LINK_KEYS.values()} == set(vars(Link()))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_model__examples_load_and_fit_a_host(file: Path) -> None:
    model = load(file)
    assert Plan(model, model.name).nodes


def test_plan__addresses_are_unique_and_names_fit() -> None:
    plan = Plan(LabModel(hosts=12, hosts_per_leaf=3, spines=5), "x")
    ends = [end for wire in plan.wires for end in wire.ends]
    assert len({end.address for end in ends}) == len(ends)
    assert len({end.mac for end in ends}) == len(ends)
    assert len({(end.node, end.interface) for end in ends}) == len(ends)
    assert all(len(end.interface) < 16 for end in ends)
    assert [one.index for one in plan.directions] == list(range(2 * len(plan.wires)))


def test_plan__routes_lead_to_neighbours() -> None:
    plan = Plan(LabModel(hosts=4, hosts_per_leaf=2, spines=3), "x")
    for node in plan.nodes:
        beside = {wire.other_end(node).address for wire in plan.wires_of(node)}
        for route in plan.routes_of(node):
            assert set(route.gateways) <= beside
    assert len(plan.routes_of("leaf0")[0].gateways) == 3


def test_plan__too_large_for_a_host() -> None:
    with pytest.raises(LabError, match="65 spines are too many for a lab: give at most 64"):
        Plan(LabModel(spines=65), "x")
    assert len(LabModel(hosts=1024, hosts_per_leaf=32, spines=32).link_names()) == 1024 + 1024
