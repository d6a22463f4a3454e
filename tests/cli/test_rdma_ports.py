"""Tests the listing of RDMA ports, GIDs and nearby GPUs, over a fake sysfs."""

from pathlib import Path

import pytest

from transport.host import rdma
from transport.host.two_hosts.ends import _interface_of

EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
MAPPED = "0000:0000:0000:0000:0000:ffff:c000:0201"
LOCAL = "fe80:0000:0000:0000:0011:22ff:fe33:4455"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def device(
    fake: Path, name: str, pci: str, state: str = "4: ACTIVE", gids: tuple[str, ...] = ()
) -> None:
    place = fake / "devices" / pci
    write(place, {"numa_node": "1"})
    port = {"state": state, "rate": "400 Gb/sec (4X NDR)", "link_layer": "Ethernet"}
    for index, gid in enumerate(gids):
        port[f"gids/{index}"] = gid
        port[f"gid_attrs/types/{index}"] = "RoCE v2" if index else "IB/RoCE v1"
        port[f"gid_attrs/ndevs/{index}"] = "eth0"
    root = fake / "infiniband" / name
    write(root, {f"ports/1/{path}": text for path, text in port.items()})
    write(root, {"fw_ver": "28.39", "hca_type": "MT4129"})
    (root / "device").symlink_to(place)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(rdma, "DEVICES", tmp_path / "infiniband")
    monkeypatch.setattr(rdma, "_with_pyverbs", lambda port: port)
    return tmp_path


def test_ports__what_sysfs_says(fake: Path) -> None:
    device(fake, "mlx5_0", "pci0000:00/0000:00:01.0/0000:01:00.0", gids=(LOCAL, MAPPED, EMPTY))
    (port,) = rdma.ports()
    assert (port.name, port.active, port.link_layer) == ("mlx5_0:1", True, "Ethernet")
    assert (port.rate_gbit_per_s, port.firmware, port.vendor) == (400.0, "28.39", "MT4129")
    assert port.numa_node == 1
    assert port.pci_path.endswith("0000:01:00.0")
    assert [(gid.index, gid.address, gid.kind) for gid in port.gids] == [
        (0, "fe80::11:22ff:fe33:4455", "IB/RoCE v1"),
        (1, "192.0.2.1", "RoCE v2"),
    ]


def test_ports__the_interface_of_one_is_told_by_its_gids(fake: Path) -> None:
    """A joined device names its ports as mlx5_0, or as mlx5_0:2 from the second one on."""
    device(fake, "mlx5_0", "pci0000:00/0000:00:01.0/0000:01:00.0", gids=(LOCAL, MAPPED))
    assert _interface_of("mlx5_0") == "eth0"
    assert (_interface_of("mlx5_0:2"), _interface_of("mlx5")) == ("", "")


def test_ports__none_and_damaged(fake: Path) -> None:
    assert rdma.ports() == []
    device(fake, "rxe0", "virtual/net/eth0", state="", gids=("not a gid",))
    (fake / "infiniband/rxe0/ports/1/rate").write_text("fast\n")
    (port,) = rdma.ports()
    assert (port.active, port.rate_gbit_per_s, port.gids) == (False, 0.0, ())


A = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
B = "/sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0"
C = "/sys/devices/pci0000:00/0000:00:03.0/0000:03:00.0"
ELSEWHERE = "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0"


@pytest.mark.parametrize(
    ("one", "other", "bridges"),
    [(A, A, 0), (A, B, 2), (A, C, 4), (C, A, 4), (A, ELSEWHERE, 1_000), (A, "", 1_000)],
)
def test_pci_distance(one: str, other: str, bridges: int) -> None:
    assert rdma.pci_distance(one, other) == bridges


def ports_at(**places: str) -> list[rdma.Port]:
    return [
        rdma.Port(
            name, 1, active=bool(path), link_layer="", rate_gbit_per_s=0, gids=(), pci_path=path
        )
        for name, path in places.items()
    ]


def test_pairing__nearest_and_in_turn() -> None:
    found = ports_at(mlx5_0=A, mlx5_1=C, mlx5_2="")
    assert rdma.pairing({"gpu0": B, "gpu1": C}, found) == {"gpu0": "mlx5_0", "gpu1": "mlx5_1"}
    # Both RDMA devices are equally far, so each gets one of the GPUs.
    far = rdma.pairing({"gpu0": ELSEWHERE, "gpu1": ELSEWHERE}, found)
    assert sorted(far.values()) == ["mlx5_0", "mlx5_1"]
    assert rdma.pairing({"gpu0": A}, []) == {}


def test_pairing__a_manual_map_overrides() -> None:
    found = ports_at(mlx5_0=A, mlx5_1=C, mlx5_2="")
    chosen = rdma.pairing({"gpu0": A, "gpu1": A}, found, manual="gpu0=mlx5_1")
    assert chosen == {"gpu0": "mlx5_1", "gpu1": "mlx5_0"}
    for wrong, words in [
        ("gpu0=mlx5_2", "not active; active: mlx5_0, mlx5_1"),
        ("gpu0", "GPU=device"),
        ("=mlx5_0", "GPU=device"),
    ]:
        with pytest.raises(ValueError, match=words):
            rdma.pairing({"gpu0": A}, found, manual=wrong)
