"""Tests scenario files: parsing, defaults, events, and one-line errors for wrong files."""

import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.sim.support import scenario
from transport.sim import ScenarioError, load, parse, schema, shipped
from transport.sim.toml_lines import line_of, lines_of

ROOT = Path(__file__).resolve().parents[2]

GOOD = """# a comment
seed = 3
[network]
hosts = 8
hosts_per_leaf = 4
spines = 2
[[workload]]
size_bytes = 1000
[[workload]]
pattern = "incast"
size_bytes = "2 KiB"
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seed = 3", "seed = -1", r"test.toml:2: seed: -1: expected a whole number from 0"),
        ("seed = 3", "sede = 3", r"test.toml:2: sede: a scenario has no such key; did you mean"),
        ("hosts = 8", 'hosts = "8"', r"test.toml:4: network.hosts: '8': expected a whole number"),
        ("hosts = 8", "", r"test.toml:3: network.hosts: missing"),
        ("hosts = 8", "hosts = 1", r"test.toml:4: network.hosts: 1: a network needs at least 2"),
        ("spines = 2", "spins = 2", r"test.toml:6: network.spins: .*did you mean spines\?"),
        ("spines = 2", 'rate = "-1 Gb/s"', r"test.toml:6: network.rate: '-1 Gb/s': expected a ra"),
        ("spines = 2", 'rate = "1 b/s"', r"test.toml:6: network.rate: '1 b/s': expected from"),
        ("spines = 2", 'delay_ns = "1 day"', r"network.delay_ns: '1 day': expected nano"),
        ("spines = 2", 'delay_ns = "1.5 ns"', r"test.toml:6: network.delay_ns: .* round it"),
        ("spines = 2", "loss = nan", r"test.toml:6: network.loss: nan: expected a number"),
        ("spines = 2", "loss = 2", r"test.toml:6: network.loss: 2: expected a number from 0 to 1"),
        ("spines = 2", "trim = 1", r"test.toml:6: network.trim: 1: expected true or false"),
        ("spines = 2", 'topology = "ring"', r"test.toml:6: network.topology: 'ring': choose one"),
        (
            "spines = 2",
            "spines = 2\noversubscription = 2\nuplink_rate = 1_000_000",
            r"test.toml:7: network.oversubscription: 2, but 2 uplinks of that rate give",
        ),
        ("spines = 2", "oversubscription = 3", r"test.toml:6: network.oversubscription: 3 needs"),
        ("spines = 2", "radix = 4", r"test.toml:6: network.radix: 4 ports are too few for"),
        ("spines = 2", "cores = 2", r"test.toml:6: network.cores: needs tiers = 3"),
        (
            "spines = 2",
            "queue_bytes = 1_000\nmark_from_bytes = 900\nmark_full_bytes = 800",
            r"test.toml:7: network.mark_from_bytes: mark_from_bytes 900 is more",
        ),
        ("spines = 2", "resume_bytes = 1", r"test.toml:6: network.resume_bytes: needs pause_bytes"),
        ("spines = 2", "pause_bytes = 9\nresume_bytes = 9", r"7: network.resume_bytes: must be"),
        (
            "spines = 2",
            "queue_bytes = 4_000",
            r"6: network.queue_bytes: leaf0 to spine0: holds 4,000 bytes, and a segment has 4,160",
        ),
        ("spines = 2", "uplink_queue_bytes = 4_000", r"6: network.uplink_queue_bytes: leaf0 to"),
        ("size_bytes = 1000", "size = 1", r"test.toml:8: workload.0.size: .* has no such key"),
        ("size_bytes = 1000", "to = 1", r"test.toml:8: workload.0.to: .* has no such key"),
        (
            '"incast"',
            '"incats"',
            r"test.toml:10: workload.1.pattern: 'incats': choose one.*; did you mean incast\?$",
        ),
        ('"incast"', '"xyz"', r"test.toml:10: workload.1.pattern: 'xyz': choose one .*, trace$"),
        ('"2 KiB"', '"2 KX"', r"test.toml:11: workload.1.size_bytes: '2 KX': expected bytes"),
        ("[[workload]]\nsize_bytes", "[workload]\nsize_bytes", r"test.toml is not TOML"),
        ("seed = 3", "[policies]\nwindo = 'x'", r"test.toml:3: policies.windo: no such policy"),
        ("seed = 3", "[policies]\nwindow = 1", r"test.toml:3: policies.window: 1: expected text"),
        ("seed = 3", "[hosts]\nrto_ns_min = '20 ms'", r"test.toml:3: hosts.rto_ns_min: is more"),
        ("seed = 3", "[hosts]\nwindow_bytes_max = 4_000", r"3: hosts.window_bytes_max: is less"),
        ("seed = 3", "[samples]\nevery_ns = 1", r"3: samples.every_ns: .* at least 100 ns"),
        ("size_bytes = 1000", "repeats = 1_048_576", r"0.pattern: 8,388,608 transfers, at most"),
        (
            '"incast"',
            "'all_reduce_ring'\nchannels = 64\nrepeats = 20_000",
            r"test.toml:10: workload.1.pattern: 143,360,000 transfers, at most 8,388,607",
        ),
        ("seed = 3", "[[events]]\nup = false", r"test.toml:2: events.0.link: missing"),
        (
            "seed = 3",
            "[[events]]\nlink = 'leaf9-spine9'\nup = false",
            r"test.toml:3: events.0.link: 'leaf9-spine9': no such link; links are host0-leaf0",
        ),
        ("seed = 3", "[[events]]\nlink = 'leaf0-spine0'", r"test.toml:2: events.0: has no effect"),
        (
            "seed = 3",
            "[[events]]\nlink = 'leaf0-spine0'\nflap_ns = 10",
            r"test.toml:4: events.0.flap_ns: flapping has no end",
        ),
        (
            "seed = 3",
            "[[events]]\nlink = 'leaf0-spine0'\nup = false\nat_ns = 5\nuntil_ns = 5",
            r"test.toml:6: events.0.until_ns: 5: must be later",
        ),
        (
            "seed = 3",
            "[[events]]\nlink = 'leaf0-spine*'\nup = false\npick = 3",
            r"test.toml:5: events.0.pick: 3: only 2 links match",
        ),
        ("seed = 3", "[samples]\nlinks = 'x'", r"test.toml:3: samples.links: 'x': no such link"),
        ("seed = 3", "[[nodes]]\nname = 'a'", r"test.toml:2: nodes.0: \[\[nodes\]\] needs"),
        ("hosts = 8", "hosts = 8\ntopology = 'file'", r"nodes: topology \"file\" needs"),
        ("hosts = 8", "hosts = 8\ntopology = 'lab'", r"network.lab: missing"),
        (
            "hosts = 8",
            "topology = 'lab'\nlab = 'a'\nrate = '1 Gb/s'",
            r"test.toml:6: network.hosts|test.toml:\d: network.rate: a lab's links are set in its",
        ),
        (
            '"incast"\nsize_bytes = "2 KiB"',
            "'moe'\nexperts = 65536\nrepeats = 1_048_576",
            r"test.toml:11: workload.1.experts: 8 ranks x 65,536 experts x 1,048,576 repeats are",
        ),
        ("hosts = 8", "topology = 'lab'\nlab = 'no.toml'", r"test.toml:5: network.lab: .*No such"),
        ("hosts = 8", "hosts = 9\ntopology = 'rail'", r"test.toml:4: network.hosts: 9 is not a"),
        ("seed = 3", "seed = = 3", r"test.toml is not TOML: .*line 2"),
    ],
)
def test_scenario__what_is_wrong_is_one_line_with_its_place(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(ScenarioError, match=said) as told:
        parse(GOOD.replace(old, new, 1), file="test.toml").check()
    assert "\n" not in str(told.value)


def test_scenario__a_good_one_has_every_default() -> None:
    found = parse(GOOD, file="test.toml").check()
    assert found.name == "test"
    assert found.seed == 3
    assert found.keys["hosts"]["paths"] == 64
    assert found.keys["workload"][1]["size_bytes"] == 2048
    assert found.network.ports["queue_bytes_max"][0] == 125_000


def test_scenario__a_graphs_wrong_link_is_told_by_its_line() -> None:
    text = "[network]\ntopology = 'file'\n[[nodes]]\nname = 'a'\nkind = 'host'\ncount = 2\n"
    text += "[[nodes]]\nname = 's'\n[[links]]\nfrom = 'a0'\nto = 's'\n[[links]]\n{}\n[[workload]]\n"
    for lines, said in {
        "from = 'a1'": r"12: links.1.to: missing",
        "from = 'a1'\nto = 'x'": r"14: links.1.to: no node is named 'x'",
        "from = 's'\nto = 's'": r"14: links.1.to: s is linked to itself",
        "from = 'a0'\nto = 'a1'": r"links: host a0 is linked to host a1",
        "from = 'a0'\nto = 's'": r"links: host a1 has no link",
    }.items():
        with pytest.raises(ScenarioError, match=said):
            parse(text.format(lines), file="test.toml").check()


def test_scenario__changes_are_judged_anew() -> None:
    found = parse(GOOD, file="test.toml")
    made = found.changed({"network.hosts": 16, "workload.size_bytes": "1 MB", "seed": 9}).check()
    assert made.network.hosts == 16
    assert [one["size_bytes"] for one in made.keys["workload"]] == [1_000_000] * 2
    assert found.network.hosts == 8
    assert found.changed({"workload.1.size_bytes": 5}).keys["workload"][0]["size_bytes"] == 1000
    for changes, said in (
        ({"network.hsots": 1}, "network.hsots"),
        ({"workload.2.size_bytes": 1}, r"there are 2 \[\[workload\]\]"),
        ({"seed.x": 1}, "is a value, not a table"),
        ({"workload": 1}, "workload: 1: expected"),
    ):
        with pytest.raises(ScenarioError, match=said):
            found.changed(changes)


def test_scenario__content_is_of_what_decides_a_run() -> None:
    found = parse(GOOD, file="test.toml")
    assert parse(GOOD.replace("# a comment", ""), file="other.toml").content() == found.content()
    assert parse(GOOD.replace("1000", '"1 kB"'), file="a.toml").content() == found.content()
    assert found.changed({"seed": 4}).content() != found.content()


def test_scenario__a_lab_that_changes_is_another_content(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text("hosts = 2\n")
    found = scenario('topology = "lab"\nlab = "lab.toml"', folder=tmp_path)
    before = found.content()
    (tmp_path / "lab.toml").write_text("hosts = 4\n")
    assert found.content() != before


def test_scenario__events() -> None:
    rest = "[[events]]\nat_ns = '1 us'\nuntil_ns = '2 us'\nlink = 'leaf0-spine0'\n{}\n"
    made = scenario("hosts = 8\nhosts_per_leaf = 4\nspines = 2", rest.format("rate = '1 Gb/s'"))
    rows = made.changes
    assert rows["at_ns"].tolist() == [1_000, 1_000, 2_000, 2_000]
    assert rows["bytes_per_s"].tolist() == [125_000_000] * 2 + [25_000_000_000] * 2
    flap = scenario("hosts = 8", rest.format("flap_ns = 400")).changes
    assert flap["at_ns"][::2].tolist() == [1_000, 1_200, 1_400, 1_600, 1_800, 2_000]
    assert flap["up"][::2].tolist() == [0, 1, 0, 1, 0, 1]
    picked = "[[events]]\nlink = 'leaf*-spine*'\npick = 3\nup = false\n"
    drawn = [scenario("hosts = 32", picked).changed({"seed": one}).changes for one in (1, 1, 2)]
    assert len(drawn[0]) == 6
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0]["port"] != drawn[2]["port"]).any()
    ports = scenario("hosts = 32").network.ports[drawn[0]["port"]]
    ends = np.sort(np.stack([ports["from"], ports["to"]], axis=1), axis=1)
    assert len(np.unique(ends, axis=0)) == 3, "both directions of each link"


@pytest.mark.parametrize("name", list(shipped()))
def test_scenario__shipped_ones_are_whole(name: str) -> None:
    found = load(name).check()
    assert found.keys["about"]
    assert len(found.work.transfers) > 0


def test_scenario__the_shipped_lab_is_the_example() -> None:
    mine = next(iter(shipped().values())).parent / "labs" / "four_paths.toml"
    assert mine.read_text() == (ROOT / "examples" / "labs" / "four_paths.toml").read_text()


def test_scenario__an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ScenarioError, match="did you mean permutation_128"):
        load("permutation_12")


def test_scenario__a_name_without_its_suffix_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(GOOD)
    with pytest.raises(ScenarioError, match=r"mine: no such file; did you mean mine\.toml\?"):
        load("mine")


def test_scenario__the_docs_have_every_key() -> None:
    page = (ROOT / "docs" / "SIMULATOR.md").read_text()
    assert schema.markdown() in page, (
        "docs/SIMULATOR.md: paste the output of `python -c 'from transport.sim import schema; "
        "print(schema.markdown())'`"
    )


def test_scenario__the_examples_of_the_docs_are_scenarios() -> None:
    page = (ROOT / "docs" / "SIMULATOR.md").read_text()
    texts = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    found = parse(texts[0]).check()
    assert found.network.hosts == 1_024
    assert len(found.changes) == 4
    steps = parse("[network]\nhosts = 8\n" + texts[1]).check()
    assert steps.work.jobs[0].program is not None
    policies = parse(texts[2]).check()
    assert policies.mix is not None
    assert len(policies.mix.sets) == 3
    plans = parse("[network]\nhosts = 8\n" + texts[3] + "[[workload]]\n")
    assert [one["at_ns"] for one in plans.keys["plans"]] == [0, 2_000_000]
    assert len(texts) == 4


def test_scenario__importing_the_package_loads_nothing_large() -> None:
    large = {"transport._native", "numba", "matplotlib", "distributed", "llvmlite"}
    script = f"import sys, transport.sim; print({large!r} & {{*sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_scenario__travels_without_its_arrays() -> None:
    found = parse(GOOD, file="test.toml").check()
    text = pickle.dumps(found)
    assert len(text) < 20_000
    assert pickle.loads(text).check().work.transfers.tolist() == found.work.transfers.tolist()


def test_lines__of_every_kind_of_key() -> None:
    text = """a = 1
"b c" = [
  1, # ]
  2,
]
s = '''
x = 1
'''
[t.u]
d.e = { f = 1 }
[[t.v]]
g = "["
[[t.v]]
g = 2
[t.v.w]
h = 3
"""
    found = lines_of(text)
    assert found["a",] == 1
    assert found["b c",] == 2
    assert found["s",] == 6
    assert ("x",) not in found
    assert found["t", "u", "d", "e"] == 10
    assert line_of(found, ("t", "u", "d", "e", "f")) == 10
    assert found["t", "v", 0, "g"] == 12
    assert found["t", "v", 1, "g"] == 14
    assert found["t", "v", 1, "w", "h"] == 16
    assert line_of(found, ("nope",)) == 1
