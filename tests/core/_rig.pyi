"""The interface of the extension _rig (tests/native/bind/rig.cc), for type checkers."""

from types import SimpleNamespace
from typing import final

FAULT_KINDS: tuple[str, ...]

@final
class LinkCounters:
    @property
    def sent(self) -> int: ...
    @property
    def delivered(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def lost_data(self) -> int: ...
    @property
    def reordered(self) -> int: ...
    @property
    def duplicated(self) -> int: ...
    @property
    def corrupted(self) -> int: ...
    @property
    def marked(self) -> int: ...
    @property
    def replayed(self) -> int: ...
    @property
    def strays(self) -> int: ...
    @property
    def outage_drops(self) -> int: ...
    @property
    def too_long(self) -> int: ...

@final
class LinkFaults:
    def __init__(self) -> None: ...
    loss: float
    reorder: float
    duplicate: float
    corrupt: float
    mark: float
    replay: float
    stray: float
    delay_ns: int
    jitter_ns: int
    reorder_ns_max: int
    replay_ns_max: int
    bytes_per_s: int

@final
class PathOutage:
    def __init__(self, *, path: int, from_ns: int, until_ns: int) -> None: ...
    path: int
    from_ns: int
    until_ns: int

@final
class SizeLimit:
    def __init__(
        self, *, path: int, sender: int = -1, bytes_max: int, from_ns: int = 0, until_ns: int
    ) -> None: ...
    path: int
    sender: int
    bytes_max: int
    from_ns: int
    until_ns: int

@final
class PolicyMenu:
    def __init__(self) -> None: ...
    def add(self, family: str, name: str, directories: list[str]) -> None: ...

@final
class Schedule:
    def __init__(self) -> None: ...
    seed: int
    paths: int
    segment_bytes: int
    stripes: int
    messages: int
    message_bytes_max: int
    zero_fraction: float
    small_fraction: float
    both_ways: bool
    send_too_long: bool
    windows: bool
    windows_outlive: bool
    late_reads: bool
    open_bytes: int
    staged_sends: float
    staged_receives: float
    post_gap_ns_max: int
    close_at_ns: int
    dies_at_ns: int
    limit_ns: int
    eager_bytes: int
    eager_slots: int
    window_bytes_max: int
    peer_silence_ns: int
    rto_ns_max: int
    port_buffer_bytes: int
    faults: LinkFaults
    outages: list[PathOutage]
    search_size: bool
    limits: list[SizeLimit]
    @property
    def fault_kinds(self) -> int: ...
    @property
    def hash(self) -> int: ...
    def choose(self, family: str, name: str, directories: list[str]) -> None: ...

@final
class RunReport:
    @property
    def violation(self) -> str: ...
    @property
    def hung(self) -> bool: ...
    @property
    def early_bytes(self) -> int: ...
    @property
    def fingerprint(self) -> int: ...
    @property
    def ended_ns(self) -> int: ...
    @property
    def completed(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def corrupt_messages(self) -> int: ...
    @property
    def writes(self) -> int: ...
    @property
    def writes_refused(self) -> int: ...
    @property
    def policies_failed(self) -> int: ...
    @property
    def storage_bytes_max(self) -> int: ...
    @property
    def size_changes(self) -> int: ...
    @property
    def segment_bytes_last(self) -> list[int]: ...
    @property
    def path_bytes(self) -> list[int]: ...
    @property
    def link(self) -> LinkCounters: ...
    @property
    def counters(self) -> tuple[SimpleNamespace, SimpleNamespace]: ...
    @property
    def stack(self) -> tuple[SimpleNamespace, SimpleNamespace]: ...

@final
class Rig:
    def __init__(self, schedule: Schedule) -> None: ...
    def step(self) -> bool: ...
    def run(self) -> RunReport: ...
    def report(self) -> RunReport: ...
    @property
    def finished(self) -> bool: ...
    @property
    def violation(self) -> str: ...
    @property
    def now_ns(self) -> int: ...
    @property
    def outstanding(self) -> int: ...

def draw_schedule(seed: int, menu: PolicyMenu) -> Schedule: ...
def run_schedule(schedule: Schedule) -> RunReport: ...
