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
        ("flops = 3", "flops: expected a table ([flops] above its keys), not the number 3"),
        ("[", "is not TOML"),
        (GOOD.replace("flops = 400e12", ""), "mine.flops: missing: give a number"),
        (GOOD.replace("400e12", "0"), "mine.flops: 0: must be 1e+09 to 1e+24"),
        (GOOD.replace("400e12", "nan"), "mine.flops: nan: must be 1e+09 to 1e+24"),
        (GOOD.replace("400e12", "1e-300"), "mine.flops: 1e-300: must be 1e+09 to 1e+24"),
        (GOOD.replace("400e12", "9" * 5_000), "cannot be read: Exceeds the limit"),
        (GOOD.replace("400e12", "true"), "mine.flops: expected a number, not the boolean true"),
        (GOOD.replace("fp8", "fp7"), "unknown key mine.dense.fp7 (did you mean fp8?): known"),
        (GOOD.replace("power_w", "watts"), "unknown key mine.watts: known are array, clock"),
        (
            GOOD.replace("power_w", "power").replace("links", "link"),
            "unknown keys mine.link (did you mean links?), mine.power (did you mean power_w?)",
        ),
        (GOOD.replace('["pcie5"]', "3"), "mine.links: expected a list of texts, not the number 3"),
        (GOOD.replace('["pcie5"]', '"pcie5"'), "list of texts, not the text 'pcie5'"),
        (GOOD.replace('["pcie5"]', '["pcie5", 4]'), "links[1]: expected a text, not the number 4"),
        (GOOD.replace('"our data sheet"', "3"), "mine.source: expected a text, not the number 3"),
        (GOOD.replace('"our data sheet"', '""'), "mine.source: expected a text, not an empty text"),
        (GOOD.replace('"our data sheet"', "2026-11-30"), "a text, not the date 2026-11-30"),
        (GOOD.replace("64e9", "[64]"), "mine.memory_bytes: expected a number, not a list"),
        (GOOD.replace("64e9", "{}"), "mine.memory_bytes: expected a number, not a table"),
        (GOOD.replace("{ bf16 = 400, fp8 = 800 }", "400"), "mine.dense: expected a table such as"),
        (GOOD + "sms = 1.5", "mine.sms: expected a whole number, not the number 1.5"),
        (GOOD + 'generation = "hoper"', "hopper, blackwell, tpu; did you mean hopper?"),
        (GOOD + "array = 0", "mine.array: 0: must be 1 to 4096"),
        (GOOD.replace('source = "our cloud", ', ""), "mine.price.source: missing"),
        (GOOD + "#" * FILE_BYTES_MAX, "it is larger than 1 MiB"),
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


def test_links__of_a_profile_must_be_known(tmp_path: Path) -> None:
    file, own = tmp_path / "mine.toml", tmp_path / "links.toml"
    file.write_text(GOOD.replace("pcie5", "pcie55"))
    own.write_text('[pcie55]\nbytes_per_s = 48e9\nlatency = "pcie"\n')
    for words in (
        ["train", "gpt2", "--gpu", str(file)],
        ["plan", "gpt2", "--gpus", "8", "--batch", "8", "--gpu", str(file)],
        ["compare", "8 x mine", "--gpus-file", str(file)],
    ):
        done = CliRunner().invoke(weft, ["estimate", *words])
        assert done.exit_code == 2
        assert "mine.links: no link pcie55: known are" in done.output
        assert "did you mean pcie5?" in done.output
        known = CliRunner().invoke(weft, ["estimate", *words, "--links-file", str(own)])
        assert known.exit_code == 0, known.output
    words = ["plan", "gpt2", "--gpus", "8", "--batch", "8", "--gpu", str(file)]
    done = CliRunner().invoke(weft, ["estimate", *words, "--links-file", str(own)])
    assert "nodes have 8 GPUs, linked by pcie55" in done.output
