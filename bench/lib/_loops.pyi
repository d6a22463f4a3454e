"""The interface of the extension _loops (bench/native/bind), for type checkers."""

from typing import Any

def bench_core(
    segments: int, segment_bytes: int, paths: int, policies: dict[str, str] = {}
) -> dict[str, Any]: ...
def bench_rdma(
    what: str, mode: str, payload: str, segments: int, segment_bytes: int, burst: int, paths: int
) -> dict[str, Any]: ...
def bench_rdma_setup(mode: str, peers: int, paths: int, segment_bytes: int) -> dict[str, int]: ...
def bench_profiler(
    library: str, operations: int, channels: int, steps: int
) -> dict[str, float]: ...
def bench_staging(
    device: int,
    source: int,
    target: int,
    bytes: int,  # noqa: A002
    ring_bytes_max: int,
    repeats: int,
) -> tuple[int, int]: ...
def bench_kernel(
    work: str,
    device: int,
    source: int,
    target: int,
    bytes: int,  # noqa: A002
    piece_bytes: int,
    repeats: int,
) -> tuple[int, int, int]: ...
def bench_datagrams(
    datapath: str,
    from_space: int,
    from_address: str,
    from_interface: int,
    to_space: int,
    to_address: str,
    to_interface: int,
    datagrams: int,
    datagram_bytes: int,
    train: int,
) -> dict[str, Any]: ...
def bench_stages(
    way: tuple[str, str, str],
    source_end: tuple[int, str],
    target_end: tuple[int, str],
    cpus: tuple[int, int],
    source: Any,
    target: Any,
    datagram_bytes: int,
    warm_bytes: int,
    bytes: int,  # noqa: A002
) -> dict[str, Any]: ...
def bench_copy(
    kind: str,
    source: Any,
    target: Any,
    piece_bytes: int,
    bytes: int,  # noqa: A002
) -> int: ...

class TripEnd:
    @staticmethod
    def listen(knobs: dict[str, str] | None) -> TripEnd: ...
    @staticmethod
    def dial(knobs: dict[str, str] | None, address: bytes) -> TripEnd: ...
    def address(self) -> bytes: ...
    def accept(self) -> None: ...
    def used_network(self) -> bool: ...
    def echo(self, bytes: int, count: int) -> None: ...  # noqa: A002
    def exchange(
        self,
        bytes: int,  # noqa: A002
        count: int,
    ) -> tuple[list[int], int]: ...
