"""Tests systems as people write them, and `weft estimate compare`, against counts by hand."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, strategies as st

from transport.cli import weft
from transport.estimate.collectives import ShapeError
from transport.estimate.gpu_profiles import GpuError
from transport.estimate.systems import parsed, sync


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(weft, ["estimate", "compare", *map(str, words)])


@pytest.mark.parametrize(
    ("text", "gpu", "chips", "network"),
    [
        ("8 x a100 nvlink3", "a100-80", 8, "nvlink3 and ethernet-400"),
        ("8x A100-40", "a100-40", 8, "nvlink3 and ethernet-400"),
        ("8xa100", "a100-80", 8, "nvlink3 and ethernet-400"),
        ("8XA100-40 nvlink3", "a100-40", 8, "nvlink3 and ethernet-400"),
        ("8\u00d7a100", "a100-80", 8, "nvlink3 and ethernet-400"),
        ("8 \u00d7 a100", "a100-80", 8, "nvlink3 and ethernet-400"),
        ("8*a100", "a100-80", 8, "nvlink3 and ethernet-400"),
        ("64 h100 NVLink4 InfiniBand-400", "h100", 64, "nvlink4 and infiniband-400"),
        ("4 x l40s ethernet-100", "l40s", 4, "pcie4 and ethernet-100"),
        ("tpu-v4 4x4x8:twisted", "tpu-v4", 128, "4x4x8:twisted"),
        ("tpu-v4 4x4x4", "tpu-v4", 64, "4x4x4"),
        ("16 x trainium2 4x4", "trainium2", 16, "4x4"),
        ("h100 tpu-v4 4x4:open", "h100", 16, "4x4:open"),
    ],
)
def test_parsed__texts(text: str, gpu: str, chips: int, network: str) -> None:
    found = parsed(text)
    assert (found.gpu.name, found.chips) == (gpu, chips)
    assert network == (found.network.name if found.network else str(found.torus))


@pytest.mark.parametrize("links", ["nvlink3 pcie3", "pcie3 nvlink3"])
def test_parsed__pcie_beside_nvlink_leads_to_the_nics(links: str) -> None:
    network = parsed(f"16 x a100 {links} infiniband-200").network
    assert network is not None
    assert network.name == "nvlink3 and infiniband-200"
    assert (network.sharing.pcie_bytes_per_s, network.sharing.is_inside) == (12e9, False)
    alone = parsed("16 x l40s infiniband-200").network
    assert alone is not None
    assert alone.sharing.is_inside


def test_parsed__names_with_a_number_and_an_x(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8xmine.toml is the file of this name if there is one, else 8 of mine.toml."""
    monkeypatch.chdir(tmp_path)
    profile = "[mine]\nflops = 4e14\nmemory_bytes = 64e9\nmemory_bytes_per_s = 2e12\n"
    Path("mine.toml").write_text(profile)
    assert parsed("8xmine.toml nvlink4").chips == 8
    Path("8xmine.toml").write_text(profile)
    with pytest.raises(ShapeError, match="how many accelerators"):
        parsed("8xmine.toml nvlink4")


def test_parsed__nodes() -> None:
    def each(text: str) -> int:
        found = parsed(text).network
        assert found is not None
        return found.gpus_per_node

    assert each("64 x h100 nvlink4 ethernet-400") == 8
    assert each("64 x h100 nvlink4 ethernet-400 4/node") == 4
    assert each("72 x gb200") == 72
    assert parsed("72 x gb200").is_one_domain
    assert not parsed("8 x h100").is_one_domain


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "which accelerator"),
        ("8 x nvlink3", "which accelerator"),
        ("2x8xh100", "which accelerator? Name one, as in 64 x h100 nvlink4 ethernet-400 8/node"),
        ("8xpigeons", "pigeons is neither an accelerator (v100-16"),
        ("8xnone.toml", "cannot read none.toml"),
        ("a100 nvlink3", "how many accelerators"),
        ("0 x a100", "give 1 to"),
        ("8 x a100 16 x", "two numbers of accelerators, 8 and 16"),
        ("64 h100 nvlink4 ethernet-400 8/node 4/node", "two sizes of a node, 8 and 4"),
        ("h100 nvlink4 4x4", "nvlink4 leads to a switch"),
        ("8 x a100 pigeons", "pigeons is neither an accelerator (v100-16"),
        ("8 x a100 nvlink3 nvlink4", "two links inside nodes"),
        ("8 x a100 nvlink3 pcie3 pcie4", "two links inside nodes"),
        ("8 x tpu-v4", "needs the shape of the torus"),
        ("8 x tpu-v4 4x4", "4x4 has 16 accelerators"),
        ("tpu-v4 4x4 ethernet-400", "a torus has no nodes"),
        ("tpu-v4 4by4", "neither an accelerator (v100-16"),
        ("80 x h100", "80 are not one node"),
        ("12 x h100 nvlink4 ethernet-400", "must be a multiple of the 8 of a node"),
        ("16 x h100 8/node", "16 are not one node"),
    ],
)
def test_parsed__mistakes_are_one_line(text: str, said: str) -> None:
    with pytest.raises((ShapeError, GpuError)) as caught:
        parsed(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    done = run("8 x a100", text)
    assert (done.exit_code, said in done.output) == (2, True)


def test_sync__ten_billion_gradients_by_hand() -> None:
    """8 A100s: 2 (7/8) 20 GB at 240 GB/s and 56 us; 64 TPU v4: 2 (63/64) 20 GB at 6 x 45 GB/s."""
    gpus, tpus = (sync(parsed(one), 10e9) for one in ("8 x a100 nvlink3", "tpu-v4 4x4x4"))
    assert gpus.estimate.bytes_ns == pytest.approx(2 * 7 / 8 * 20 / 240 * 1e9)
    assert tpus.estimate.bytes_ns == pytest.approx(2 * 63 / 64 * 20 / 270 * 1e9)
    assert gpus.sent_bytes == pytest.approx(35e9)
    assert tpus.sent_bytes == pytest.approx(2 * 63 / 64 * 20e9)
    assert gpus.compute_ns is None
    assert gpus.hidden_ns is None


def test_sync__what_is_hidden_and_what_fits() -> None:
    system = parsed("8 x a100 nvlink3")
    half = sync(system, 10e9, compute_ns=90e6)
    assert half.hidden_ns == pytest.approx(60e6)
    whole = sync(system, 10e9, compute_ns=900e6)
    assert whole.hidden_ns == whole.estimate.time_ns
    tokens = sync(system, 10e9, tokens=4096)
    kernels = system.gpu.kernels
    assert tokens.compute_ns == pytest.approx(6 * 10e9 * 4096 / (312e12 * kernels.products) * 1e9)
    assert tokens.compute_ns is not None
    assert tokens.range_ns == tuple(tokens.compute_ns * one for one in kernels.spread)
    assert [sync(system, one).fits for one in (1e9, 10e9, 100e9)] == ["whole", "split", "no"]


def test_sync__each_accelerator_has_its_own_share_of_the_peak() -> None:
    systems = [parsed(one) for one in ("8 x h100 nvlink4", "tpu-v5p 2x4", "tpu-v6e 2x4")]
    hopper, fitted, other = (sync(one, 1e9, tokens=4096) for one in systems)
    for one in (hopper, fitted, other):
        gpu = one.system.gpu
        assert one.compute_ns is not None
        assert one.compute_ns * gpu.flops == pytest.approx(6e9 * 4096 * 1e9 / gpu.kernels.products)
    assert fitted.range_ns is not None
    assert other.range_ns is not None
    # A TPU without runs of the fit has a wider range.
    (low, high), (lower, higher) = fitted.range_ns, other.range_ns
    assert higher / lower == pytest.approx((high / low) ** 2)


def test_command__says_what_computation_leaves_out() -> None:
    done = run("8 x h100 nvlink4", "tpu-v5p 2x4", "--tokens", "4096")
    assert done.exit_code == 0, done.output
    assert "attention, the kernels between products and recomputation come on top" in done.output
    share = round(100 * parsed("8 x h100 nvlink4").gpu.kernels.products)
    assert f"products reach {share} % (h100)" in done.output
    assert " to " in done.output


@given(
    st.sampled_from(["8 x a100", "64 x h100 nvlink4 ethernet-400", "tpu-v4 4x4x8", "72 x gb200"]),
    st.floats(1e6, 1e12),
    st.floats(1, 10),
    st.floats(1, 1e10),
)
def test_sync__never_hides_more_than_there_is(
    text: str, parameters: float, more: float, compute_ns: float
) -> None:
    one = sync(parsed(text), parameters, compute_ns=compute_ns)
    assert one.hidden_ns is not None
    assert 0 <= one.hidden_ns <= one.estimate.time_ns
    assert sync(parsed(text), parameters * more).estimate.time_ns >= one.estimate.time_ns


def test_command__tables_json_and_unknown_values() -> None:
    words = ["8 x a100 nvlink3", "tpu-v4 4x4x4", "--size", "1 MB", "--operation", "AllToAll"]
    shown = run(*words)
    assert shown.exit_code == 0, shown.output
    assert "145.9 ms" in shown.output
    assert "gradients of 10 billion parameters" in shown.output
    assert " ?" in shown.output
    found = json.loads(run(*words, "--tokens", "4096", "--json", "-").output)
    assert [one["accelerators"] for one in found["systems"]] == [8, 64]
    assert found["systems"][0]["fits"] == "split"
    (one,) = found["operations"]
    assert (one["operation"], one["size_bytes"], len(one["times_ns"])) == ("all_to_all", 1e6, 2)


def test_command__a_first_system_that_sends_nothing() -> None:
    done = run("tpu-v4 1x1", "8 x h100", "--size", "1 MB", "--operation", "all_reduce")
    assert done.exit_code == 0
    assert "0 ns" in done.output


def test_command__price_and_link_of_a_users_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[mine]\nflops = 1e14\nmemory_bytes = 1e11\nmemory_bytes_per_s = 1e12\nlinks = ["pcie5"]\n'
        'price = { dollars_per_hour = 2.5, source = "us", date = "2026-11-30" }\n'
    )
    done = run("8 x mine", "4 x nvlink3 a100", "--gpus-file", file)
    assert done.exit_code == 0, done.output
    assert "20.00 $ (2026-11-30)" in done.output
    alone = run(f"8 x {file}")
    assert (alone.exit_code, "8 x" in alone.output) == (0, True)
    file.write_text("mine = 3")
    wrong = run("8 x a100", "--gpus-file", file)
    assert (wrong.exit_code, "mine: expected a table" in wrong.output) == (2, True)


def test_command__page_and_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    page, picture = tmp_path / "page.html", tmp_path / "sums.svg"
    words = ["8 x a100", "tpu-v4 4x4x4", "--compute", "90ms"]
    done = run(*words, "--html", page, "--plot", picture)
    assert done.exit_code == 0, done.output
    assert "tpu-v4 4x4x4" in page.read_text()
    assert picture.stat().st_size > 5_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model-parameters", "many"], "many: expected a number such as"),
        (["--model-parameters", "nan"], "nan: expected a number such as"),
        (["--model-parameters", "0"], "0: must be 1 to"),
        (["--compute", "1s", "--tokens", "5"], "give one"),
        (["--size", "big"], "--size: "),
        (["--size", "1 MB", "--operation", "gossip"], "no gossip on a torus"),
    ],
)
def test_command__mistakes_are_one_line(words: list[str], said: str) -> None:
    done = run("tpu-v4 4x4", *words)
    assert done.exit_code == 2
    assert said in done.output


def test_command__counts_have_suffixes() -> None:
    found = [
        json.loads(run("8 x a100", *words, "--json", "-").output)["systems"]
        for words in (
            ("--tokens", "2K", "--model-parameters", "1.5B"),
            ("--tokens", "2000", "--model-parameters", "1500m"),
            ("--tokens", "2e3", "--model-parameters", "1.5e9"),
        )
    ]
    assert found[0] == found[1] == found[2]
    for wrong in ("2X", "0", "nan", "-1", "1e13", "K"):
        done = run("8 x a100", "--tokens", wrong)
        assert done.exit_code == 2
        assert "--tokens" in done.output
