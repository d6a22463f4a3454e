"""Tests profiles of accelerators: the shipped ones, and files of users with mistakes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from transport.cli import weft
from transport.estimate.gpu_profiles import FILE_BYTES_MAX, GpuError, Price
from transport.estimate.gpus import gpu, names
from transport.estimate.networks import links

GOOD = """
[mine]
flops = 400e12
memory_bytes = 64e9
memory_bytes_per_s = 2e12
dense = { bf16 = 400, fp8 = 800 }
power_w = 500
links = ["pcie5"]
source = "our data sheet"
price = { dollars_per_hour = 2.5, source = "our cloud", date = "2026-11-30" }
"""


def test_shipped__have_sources_known_links_and_consistent_rates() -> None:
    for name in names():
        found = gpu(name)
        assert found.facts.source
        assert set(found.facts.links) <= set(links())
        dense = dict(found.facts.dense)
        assert dense.get("bf16", dense.get("fp16")) == pytest.approx(found.flops)
        assert dense.get("tf32", 0) <= found.flops <= dense.get("fp8", found.flops)


def test_names__with_one_memory_size_left_open() -> None:
    assert (gpu("A100").name, gpu("V100").name) == ("a100-80", "v100-32")
    assert (gpu("TPU v5p").name, gpu("trn2").name) == ("tpu-v5p", "trainium2")


def test_file__of_one_accelerator_or_added_to_the_shipped_ones(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GOOD)
    found = gpu(str(file))
    assert (found.name, found.flops, found.memory_bytes) == ("mine", 400e12, 64e9)
    assert dict(found.facts.dense)["fp8"] == 800e12
    assert found.facts.price == Price(2.5, "our cloud", "2026-11-30")
    assert gpu("mine", file=file) == found
    assert gpu("h100", file=file) == gpu("h100")
    file.write_text(GOOD + GOOD.replace("[mine]", "[other]"))
    with pytest.raises(GpuError, match="has mine, other: choose with --gpus-file"):
        gpu(str(file))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no accelerator"),
        ("flops = 3", "flops: must be in a table"),
        ("[", "is not TOML"),
        (GOOD.replace("flops = 400e12", ""), "mine.flops: missing: give a number"),
        (GOOD.replace("400e12", "0"), "mine.flops: 0: must be at least 1e+09"),
        (GOOD.replace("400e12", "nan"), "mine.flops: nan: must be at least 1e+09"),
        (GOOD.replace("400e12", "1e-300"), "mine.flops: 1e-300: must be at least 1e+09"),
        (GOOD.replace("400e12", "9" * 5_000), "cannot be read: Exceeds the limit"),
        (GOOD.replace("400e12", "true"), "mine.flops: expected a number, not True"),
        (GOOD.replace("fp8", "fp7"), "unknown key mine.dense.fp7"),
        (GOOD.replace("power_w", "watts"), "unknown key mine.watts"),
        (GOOD.replace('["pcie5"]', "3"), "mine.links: expected a list"),
        (GOOD.replace('source = "our cloud", ', ""), "mine.price.source: missing"),
        (GOOD + "#" * FILE_BYTES_MAX, "at most 1,048,576 are read"),
    ],
)
def test_file__mistakes_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(GpuError) as caught:
        gpu(str(file))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_train__takes_a_profile_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GOOD)
    words = ["estimate", "train", "gpt2", "--json", "-"]
    for more in (["--gpu", str(file)], ["--gpu", "Mine", "--gpus-file", str(file)]):
        done = CliRunner().invoke(weft, [*words, *more])
        assert json.loads(done.output)["gpu"] == "mine"
    missing = CliRunner().invoke(weft, [*words, "--gpu", str(tmp_path / "none.toml")])
    assert missing.exit_code == 2
    assert "cannot read" in missing.output


def test_train__says_that_a_torus_is_not_in_the_estimate() -> None:
    for name, is_said in (("tpu-v4", True), ("h100", False)):
        done = CliRunner().invoke(weft, ["estimate", "train", "gpt2", "--gpu", name])
        assert ("is usually linked as a torus" in done.output) == is_said
