"""Tests what configuration files say about experts: how they are cut, and who exchanges tokens."""

from pathlib import Path

from tests.estimate.config_files import SCRIPT, TITAN
from tests.estimate.test_configs import given


def test_megatron__experts_may_be_whole(tmp_path: Path) -> None:
    script = SCRIPT.replace("--num-layers", "--expert-tensor-parallel-size 1 --num-layers")
    found = given(tmp_path, script, "pretrain.sh")
    assert "expert_tensor" not in found.options  # the model has no experts
    moe = script.replace("--num-layers", "--num-experts 8 --num-layers")
    found = given(tmp_path, moe, "pretrain.sh")
    assert found.options["expert_tensor"] == 1
    assert "expert-tensor-parallel-size" in found.taken


def test_megatron__says_which_dispatcher_is_estimated(tmp_path: Path) -> None:
    moe = SCRIPT.replace(
        "--num-layers", "--num-experts 8 --expert-model-parallel-size 8 --num-layers"
    )
    said = "experts are estimated with AllToAlls"
    assert any(said in note for note in given(tmp_path, moe, "pretrain.sh").notes)
    asked = moe.replace("--num-layers", "--moe-token-dispatcher-type alltoall --num-layers")
    found = given(tmp_path, asked, "pretrain.sh")
    assert not any(said in note for note in found.notes)
    assert "moe-token-dispatcher-type" in found.taken
    assert not any(said in note for note in given(tmp_path, SCRIPT, "pretrain.sh").notes)


def test_torchtitan__experts_are_whole_unless_said(tmp_path: Path) -> None:
    """The default of expert_tensor_parallel_degree is 1 (torchtitan/config/job_config.py)."""
    assert "expert_tensor" not in given(tmp_path, TITAN, "a.toml").options
    text = TITAN.replace(
        "tensor_parallel_degree", "expert_parallel_degree = 2\ntensor_parallel_degree"
    )
    assert given(tmp_path, text, "a.toml").options["expert_tensor"] == 1
    text = text.replace(
        "expert_parallel_degree", "expert_tensor_parallel_degree = 2\nexpert_parallel_degree"
    )
    assert given(tmp_path, text, "a.toml").options["expert_tensor"] == 2
