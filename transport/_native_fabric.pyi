"""The extension's interface of the fabric, for type checkers: a part of _native.pyi."""

from typing import Any, final

import numpy as np

# native/bind/fabric.cc

# Structured types with the fields of PortPlan, PortChange, PathChoice, TransferPlan and
# DependencyPlan in native/sim/fabric/fabric_plan.h, in order.
PORT_PLAN: np.dtype[Any]
PORT_CHANGE: np.dtype[Any]
PATH_CHOICE: np.dtype[Any]
TRANSFER_PLAN: np.dtype[Any]
DEPENDENCY_PLAN: np.dtype[Any]

@final
class FabricPlan:
    def __init__(self) -> None: ...
    seed: int
    threads: int
    check: bool
    limit_ns: int
    ecmp: str
    trim: bool
    priority: bool
    header_queue_bytes_max: int
    buffer_bytes: int
    buffer_alpha: float
    pause_bytes: int
    resume_bytes: int
    host_delay_ns: int
    host_jitter_ns: int
    paths: int
    segment_bytes: int
    wire_overhead_bytes: int
    burst_bytes_max: int
    ahead: int
    receives_ready: bool
    rtt_ns: int
    rtt_expected_ns: int
    ack_bytes: int
    ack_delay_ns: int
    window_bytes_max: int
    rto_ns_min: int
    rto_ns_max: int
    peer_silence_ns: int
    speculative_bytes: int
    link_bytes_per_s: int
    sample_ns: int
    sample_ports: list[int]
    sample_streams: list[int]
    trace_ns: int
    recording_bytes_max: int
    def set_network(
        self,
        *,
        hosts: int,
        switches: int,
        ports: np.ndarray[Any, Any],
        group_of: np.ndarray[Any, Any],
        route: np.ndarray[Any, Any],
        set_begin: np.ndarray[Any, Any],
        set_ports: np.ndarray[Any, Any],
        route_at_ns: np.ndarray[Any, Any],
    ) -> None: ...
    def set_changes(self, changes: np.ndarray[Any, Any]) -> None: ...
    def set_choices(self, choices: np.ndarray[Any, Any]) -> None: ...
    def routes(self, ends: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]: ...
    def set_work(
        self, transfers: np.ndarray[Any, Any], dependencies: np.ndarray[Any, Any]
    ) -> None: ...
    def choose_text(
        self, family: str, text: str, directories: list[str] = ..., policy_set: int = ...
    ) -> str: ...
    def set_policy_sets(self, of_transfer: np.ndarray[Any, Any]) -> None: ...
    def choose(
        self, family: str, name: str, directories: list[str] = ..., params: bytes = ...
    ) -> None: ...
    def complaint(self) -> str: ...
    def estimated_bytes(self) -> int: ...

@final
class FabricTotals:
    ended_ns: int
    packet_hops: int
    data_packets: int
    segments: int
    windows: int
    transfers_done: int
    violations: int
    policies_failed: int
    storage_bytes: int
    fingerprint: int
    finished: bool

@final
class Fabric:
    def __init__(self, plan: FabricPlan) -> None: ...
    def run(self, hops: int) -> bool: ...
    @property
    def totals(self) -> FabricTotals: ...
    @property
    def violation(self) -> str: ...
    @property
    def policy_failure(self) -> str: ...
    def transfers(self) -> np.ndarray[Any, Any]: ...
    def streams(self) -> np.ndarray[Any, Any]: ...
    def ports(self) -> np.ndarray[Any, Any]: ...
    def buffer_bytes_max(self) -> np.ndarray[Any, Any]: ...
    def copies_max(self) -> np.ndarray[Any, Any]: ...
    @property
    def recording(self) -> bytes: ...
    def samples(self) -> dict[str, np.ndarray[Any, Any]]: ...
    def traced_transfers(self) -> np.ndarray[Any, Any]: ...
    def traced_paths(self) -> np.ndarray[Any, Any]: ...
    def traced_events(self) -> np.ndarray[Any, Any]: ...
    def routes(self, ends: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]: ...
    @staticmethod
    def event_name(kind: int) -> str | None: ...
