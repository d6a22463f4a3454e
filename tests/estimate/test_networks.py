"""Tests profiles of networks: the shipped links, and files with mistakes."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from transport.cli import weft
from transport.estimate.gpu_profiles import GpuError
from transport.estimate.gpus import gpu, names
from transport.estimate.networks import (
    FILE_BYTES_MAX,
    NetworkError,
    about_links,
    links,
    load,
    of_links,
    with_file,
)

GOOD = """
name = "mine"
source = "measured"
[between]
bytes_per_s = 1e9
[[between.protocols]]
name = "only"
step_ns = 1_000
"""


def test_links__rates_are_below_the_line_rate() -> None:
    for name, one in links().items():
        kind, _, gigabits = name.partition("-")
        if kind in ("ethernet", "infiniband"):
            assert 0.97 < one.bytes_per_s / (int(gigabits) * 1e9 / 8) < 1.0
        assert max(each.share for each in one.protocols) == 1.0
    assert set(about_links()) == set(links())


def test_links__nics_of_a_node_are_shared() -> None:
    own, shared = (of_links("ethernet-400", "nvlink4", 8, nics) for nics in (None, 2))
    assert shared.between.bytes_per_s == pytest.approx(own.between.bytes_per_s / 4)
    assert (own.nodes(8), own.nodes(9), of_links("ethernet-400").nodes(9)) == (1, 2, 9)


def test_load__a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GOOD)
    found = load(file)
    assert (found.name, found.gpus_per_node, found.inside, found.calibrated) == (
        "mine",
        1,
        None,
        None,
    )
    assert found.between.protocols[0].base_ns == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = 3", "name: expected a text, not the number 3"),
        ("", "is empty: give a file that `weft estimate calibrate` wrote"),
        ("source = 'x'", "name: missing: give a text"),
        ("nam = 3\n" + GOOD, "unknown key nam (did you mean name?): known are between, calibrated"),
        ("gpus_per_node = 1.5\n" + GOOD, "gpus_per_node: expected a whole number, not"),
        (
            "inside = 3\n" + GOOD,
            "inside: expected a table ([inside] above its keys), not the number",
        ),
        ("notes = [3]\n" + GOOD, "notes[0]: expected a text, not the number 3"),
        ("{", "is not TOML"),
        ("{", "give a file that `weft estimate calibrate` wrote"),
        (GOOD.replace("1e9", "0"), "between.bytes_per_s: 0: must be 1 to 1e+18"),
        (
            GOOD.replace("1e9", '"1 GB"'),
            "between.bytes_per_s: expected a number, not the text '1 GB'",
        ),
        (
            GOOD.replace("step_ns = 1_000", ""),
            "between.protocols.0.step_ns: missing: give a number",
        ),
        (GOOD.replace("step_ns", "share = 2\nstep_ns"), "share: 2: must be 1e-09 to 1"),
        (GOOD.replace("1e9", "nan"), "between.bytes_per_s: nan: must be"),
        (GOOD.split("[[")[0], "between.protocols: missing"),
        (GOOD.split("[between]")[0], "between: missing: give a table ([between] above its keys)"),
        ("speed = 3\n" + GOOD, "unknown key speed"),
        ("calibrated = 3\n" + GOOD, "calibrated: expected a table"),
        ("slowdown = 2\n" + GOOD, "slowdown: expected a table"),
        (GOOD + "[slowdown]\ncomputation = 0.5", "slowdown.computation: 0.5: must be 1 to 100"),
        (GOOD + "[slowdown]\nmemory = 2", "unknown key slowdown.memory"),
    ],
)
def test_load__mistakes_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(NetworkError) as caught:
        load(file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


OWN = """
[wire]
bytes_per_s = 300e9
latency = "nvlink"
about = "ours"
[hop]
bytes_per_s = 20e9
latency = "torus"
"""


def test_with_file__adds_links_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "links.toml"
    file.write_text(OWN)
    known = with_file(file)
    assert known["wire"].protocols == links()["nvlink4"].protocols
    network = of_links("ethernet-400", "Wire", 4, known=known)
    assert network.inside is not None
    assert (network.inside.bytes_per_s, network.name) == (300e9, "wire and ethernet-400")
    words = ["estimate", "collective", "all_reduce", "1GB", "--links-file", str(file)]
    for more in (["--inside", "wire"], ["--torus", "4x4", "--link", "hop"]):
        assert CliRunner().invoke(weft, [*words, *more]).exit_code == 0
    words = ["estimate", "compare", "8 x a100 wire", "a100 hop 4x4", "--links-file", str(file)]
    assert CliRunner().invoke(weft, words).exit_code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wire = 3", "wire: expected a table ([wire] above its keys), not the number 3"),
        (OWN.replace('"nvlink"', '"string"'), "wire.latency: string: must be one of nvlink, pcie"),
        (OWN.replace('"nvlink"', '"nvlnk"'), 'such as "1 ms"; did you mean nvlink?'),
        (OWN.replace('"nvlink"', "3"), 'such as "1 ms", not the number 3'),
        (OWN.replace("bytes_per_s", "byte_per_s"), "wire.byte_per_s (did you mean bytes_per_s?)"),
        (
            OWN.replace("[wire]", "[[links]]"),
            "links: expected a table ([links] above its keys), not a",
        ),
        (OWN.replace("300e9", "-1"), "wire.bytes_per_s: -1: must be 1 to"),
        (
            OWN.replace("about", "color"),
            "unknown key wire.color: known are about, bytes_per_s, latency",
        ),
        (OWN + "#" * FILE_BYTES_MAX, "it is larger than 1 MiB"),
        ("[", "is not TOML"),
    ],
)
def test_with_file__mistakes_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "links.toml"
    file.write_text(text)
    with pytest.raises(NetworkError) as caught:
        with_file(file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gpus__have_what_is_needed() -> None:
    for name in names():
        assert gpu(name, 0.5).ns(gpu(name).flops) == pytest.approx(2e9)
    for name, efficiency in (("h300", 0.5), ("h200", 0.0), ("h200", 1.5)):
        with pytest.raises(GpuError):
            gpu(name, efficiency)
