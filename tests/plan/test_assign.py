"""Tests that assignments load links evenly, the same way every time, and respect sides."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

from tests.plan.support import clos
from transport.cli import weft
from transport.cli.plan_assign import by_number
from transport.plan import routes as files
from transport.plan.assign import AssignError, PairPlan, assign
from transport.plan.demand import DemandError, of_file, of_ring, over_ends
from transport.plan.routes import Routes, RoutesError, merged, read

HOSTS = [f"host{at}" for at in range(8)]


def loads(routes: Routes, chosen: dict[tuple[str, str], list[int]], sent: dict) -> dict[str, float]:  # type: ignore[type-arg]
    """Bytes on each link between routers."""
    carried: dict[str, float] = defaultdict(float)
    for pair, paths in chosen.items():
        for path in paths:
            for link in routes.of[*pair, path]:
                if "host" not in routes.links[link]:
                    carried[routes.links[link]] += sent.get(pair, len(paths)) / len(paths)
    return carried


def paths_of(pairs: tuple[PairPlan, ...]) -> dict[tuple[str, str], list[int]]:
    return {(one.source, one.target): list(one.paths) for one in pairs}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_assign__no_random_choice_is_better(data: st.DataObject) -> None:
    spines, paths = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    seed = data.draw(st.integers(0, 1_000))
    routes = clos(4, 2, spines, 16, seed)
    pairs = data.draw(
        st.lists(
            st.tuples(st.sampled_from(HOSTS), st.sampled_from(HOSTS)).filter(
                lambda p: p[0] != p[1]
            ),
            min_size=1,
            max_size=12,
            unique=True,
        )
    )
    sent = {pair: data.draw(st.integers(1, 9)) * 1_000_000 for pair in pairs}
    made = assign(routes, sent, paths=paths)
    load = loads(routes, paths_of(made.pairs), sent)
    busiest = max(load.values(), default=0.0)
    if load and made.busiest_link in load:
        assert busiest == pytest.approx(made.busiest_bytes)
    assert made.bound_bytes <= made.busiest_bytes * (1 + 1e-9)
    assert made.busiest_bytes <= made.ecmp_bytes * (1 + 1e-9)
    random = Random(seed)
    for _ in range(4):
        drawn = {pair: [random.randrange(16) for _ in range(paths)] for pair in pairs}
        assert (
            busiest <= max(loads(routes, drawn, sent).values(), default=0.0) * 1.001
        )  # 1.001: acknowledgments


def test_assign__is_deterministic_and_ignores_the_order_of_the_demand() -> None:
    sent = {(one, other): 1_000 + at for at, one in enumerate(HOSTS) for other in HOSTS[at + 1 :]}
    backwards = dict(reversed(sent.items()))
    first = assign(clos(4, 2, 4, 16), sent, paths=4)
    assert first.pairs == assign(clos(4, 2, 4, 16), backwards, paths=4).pairs


def test_assign__a_ring_uses_every_spine_equally() -> None:
    routes = clos(4, 1, 4, 64)
    made = assign(routes, of_ring(HOSTS[:4]), paths=8)
    assert made.busiest_bytes == made.bound_bytes
    assert made.ecmp_bytes > 1.5 * made.busiest_bytes
    for pair in made.pairs:
        if pair.sent_bytes == 8:
            continue  # the pair carries only acknowledgments
        spines = [links[1].partition(">")[2] for links in pair.links]
        assert sorted(spines) == sorted(2 * [f"spine{at}" for at in range(4)])
        assert len(set(pair.ports)) == 8
        assert pair.weights == (0.125,) * 8


def test_assign__heavy_flows_share_no_link_that_they_need_not() -> None:
    routes = clos(2, 4, 4, 32)
    sent = {(f"host{at}", f"host{at + 4}"): 10**9 for at in range(4)}
    made = assign(routes, sent, paths=1)
    assert made.busiest_bytes == made.bound_bytes == 1e9


def test_assign__avoids_sick_links_where_it_can() -> None:
    routes = replace(clos(4, 1, 4, 64), sick=("leaf0>spine1",))
    made = assign(routes, of_ring(HOSTS[:4]), paths=8, avoid=["leaf1-spine2"])
    links = {link for pair in made.pairs for path in pair.links for link in path}
    assert not links & {"leaf0>spine1", "leaf1>spine2", "spine2>leaf1"}
    alone = assign(replace(clos(2, 1, 1, 4), sick=("leaf0>spine0",)), of_ring(HOSTS[:2]))
    assert len(alone.pairs) == 2
    assert alone.notes == ("1 pairs use a sick or avoided link, because every way has one",)


def test_assign__keeps_sides_apart() -> None:
    routes = clos(2, 1, 2, 16, sides=("left", "right"))
    sent = over_ends(of_ring(HOSTS[:2], 1_000), routes)
    assert sent == {
        (f"host{a}/{side}", f"host{1 - a}/{side}"): 500
        for a in (0, 1)
        for side in ("left", "right")
    }
    for pair in assign(routes, sent, paths=4).pairs:
        side = files.side(pair.source)
        for path in pair.links:
            assert all(node.endswith(side) for link in path for node in link.split(">"))


def test_assign__other_jobs_count() -> None:
    routes = clos(2, 1, 2, 16)
    sent = {("host0", "host1"): 1_000}
    made = assign(routes, sent, paths=1, base={"leaf0>spine0": 500.0, "leaf0>spine1": 100.0})
    assert made.pairs[0].links[0][1] == "leaf0>spine1"


def test_assign__each_pair_of_engines_gets_its_paths() -> None:
    routes = clos(2, 1, 2, 256)
    routes = replace(
        routes,
        ports={ends: (20_000 + ends[2] // 16, 20_000 + ends[2] % 16) for ends in routes.of},
    )
    made = assign(routes, {("host0", "host1"): 1_000_000}, paths=4, engines=2)
    engines = [(near >= 20_008, far >= 20_008) for near, far in made.pairs[0].ports]
    assert sorted(engines) == sorted(4 * [(a, b) for a in (False, True) for b in (False, True)])
    with pytest.raises(AssignError, match="16 ports, which 3 engines cannot share equally"):
        assign(routes, {("host0", "host1"): 1}, engines=3)


def test_assign__what_cannot_be_planned_is_an_error() -> None:
    routes = clos(2, 1, 2, 4)
    for sent, said in (
        ({}, "nothing is sent"),
        ({("host0", "host9"): 1}, "no way from host0 to host9"),
    ):
        with pytest.raises(AssignError, match=said):
            assign(routes, sent)
    silent = Routes(("h0>?1", "?1>h1"), {("h0", "h1", 0): (0, 1)})
    for known in (silent, Routes((), {("h0", "h1", 0): ()})):
        with pytest.raises(AssignError, match="the routes name no link between switches"):
            assign(known, {("h0", "h1"): 1})


@pytest.mark.parametrize(
    "text",
    [
        '"links":[],"routes":[["a","b",1e999,[]]]',
        '"links":["a>b"],"routes":[["a","b",0,[1e999]]]',
        '"links":["\\ud800"],"routes":[]',
        '"links":["\\u0000"],"routes":[]',
        '"links":[],"routes":[],"ports":[["a","b",0,1e999,5]]',
    ],
)
def test_routes__impossible_values_are_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "routes.json"
    file.write_text('{"weft_routes":1,' + text + "}")
    said = "is no file of routes: make it with weft plan probe|expected a whole number below 65536"
    with pytest.raises(RoutesError, match=said):
        read(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"links":[],"routes":[["a","b",-1,[]]]', "path -1: expected a whole number"),
        ('"links":[],"routes":[["a","b",1e308,[]]]', "path 1e\\+308: expected a whole number"),
        ('"links":[],"routes":[["a","b",true,[]]]', "path True: expected a whole number"),
        ('"links":"abc","routes":[]', "links and routes must be lists"),
    ],
)
def test_routes__a_wrong_number_or_list_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "routes.json"
    file.write_text('{"weft_routes":1,' + text + "}")
    with pytest.raises(RoutesError, match=said):
        read(file)


def test_demand__wrong_rows_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "demand.toml"
    for text, said in (
        ("", "no demand"),
        ("[[demand]]\nfrom = 'a'\nto = 'b'", "expected from, to and bytes"),
        ("[[demand]]\nfrom = 'a'\nto = 'a'\nbytes = 1", "two different hosts"),
        ("[[demand]]\nfrom = 'a'\nto = 'b'\nbytes = -1", "positive number"),
        ("[[", "is not TOML"),
    ):
        file.write_text(text)
        with pytest.raises(DemandError, match=said):
            of_file(file)
    with pytest.raises(DemandError, match="no host hots1, do you mean host1"):
        over_ends({("host0", "hots1"): 1}, clos(2, 1, 2, 4))
    file = tmp_path / "demand.json"
    file.write_text(json.dumps([["a", "b", 5], ["a", "b", 6]]))
    assert of_file(file) == {("a", "b"): 11}


def test_routes__survive_a_file_and_merge(tmp_path: Path) -> None:
    routes = replace(clos(2, 1, 2, 4), sick=("leaf0>spine1",))
    routes.write(tmp_path / "r.json")
    again = files.read(tmp_path / "r.json")
    assert vars(again) == vars(routes)
    parts = []
    for source in ("host0", "host1"):
        keys = [ends for ends in routes.of if ends[0] == source]
        part = {ends: routes.of[ends] for ends in keys}
        parts.append(replace(routes, of=part, ports={ends: routes.ports[ends] for ends in keys}))
    both = merged(parts)
    named = {
        ends: [both.links[one] for one in links] for ends, links in both.of.items()
    }  # merging may have renumbered the links
    assert named == {e: [routes.links[one] for one in links] for e, links in routes.of.items()}
    assert both.ports == routes.ports
    assert both.fingerprint() == routes.fingerprint()
    with pytest.raises(RoutesError, match="different fabrics: a, b"):
        merged([replace(routes, fabric="a"), replace(routes, fabric="b")])


def test_cli__plans_two_jobs_into_one_file(tmp_path: Path) -> None:
    clos(4, 2, 4, 32).write(tmp_path / "routes.json")
    plan = ["--plan", str(tmp_path / "plan.json")]
    for job in ("a", "b"):
        words = ["plan", "assign", str(tmp_path / "routes.json"), "--ring", "all", "--job", job]
        run = CliRunner().invoke(weft, [*words, *plan, "--paths", "1", "--json", "-"])
        assert run.exit_code == 0, run.output
        found = json.loads(run.output)
    assert found["other_jobs"] == ["a"]
    assert found["busiest_bytes"] <= found["ecmp_mean_bytes"]
    assert CliRunner().invoke(weft, ["plan", "release", "--job", "a", *plan]).exit_code == 0
    again = CliRunner().invoke(weft, ["plan", "release", "--job", "a", *plan])
    assert again.exit_code == 2
    assert "has no job a; its jobs: b" in again.output


def test_cli__a_job_that_is_planned_again_is_said_to_be_replaced(tmp_path: Path) -> None:
    clos(4, 2, 4, 32).write(tmp_path / "routes.json")
    words = ["plan", "assign", str(tmp_path / "routes.json"), "--ring", "all", "--paths", "1"]
    words += ["--plan", str(tmp_path / "plan.json")]
    assert "replaced" not in CliRunner().invoke(weft, words).output
    assert "note: replaced the job job of" in CliRunner().invoke(weft, words).output


def test_by_number__sorts_hosts_as_people_count() -> None:
    names = ["host10", "host2", "b1", "host2a", "host"]
    assert sorted(names, key=by_number) == ["b1", "host", "host2", "host2a", "host10"]
