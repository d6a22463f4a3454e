"""Tests that policies are chosen, replaced and tuned on live connections without losing data."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.api.support import LOCAL, PATIENCE_S, content, pair
from transport import Connection, Endpoint
from transport.endpoint.knobs import KnobError
from transport.errors import InvalidArgumentError

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_policy.py"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "weft" / "policies"


def exchange(here: Connection, there: Connection, rounds: int = 3, size: int = 300_000) -> None:
    for number in range(rounds):
        want = content(size, number)
        into = np.zeros(size, np.uint8)
        handle = there.irecv_into(into)
        here.send(want)
        assert handle.wait(PATIENCE_S) == size
        assert into.tobytes() == want


def test_policies__say_what_decides_with_which_parameters() -> None:
    with pair(window_policy="swift:increase_segments=8,target_queue_ns=70000") as (here, there):
        state = here.policies["window"]
        assert (state.family, state.name, len(state.source_sha256)) == ("window", "swift", 64)
        assert state.params["increase_segments"] == 8.0
        assert state.params["target_queue_ns"] == 70_000
        assert set(there.policies) == {"window", "path", "loss"}
        exchange(here, there)


def test_policies__a_connection_may_have_its_own() -> None:
    settings = LOCAL
    with (
        Endpoint(**settings) as left,
        Endpoint(**settings) as right,
        right.listen(policies={"window": "fixed:window_bytes=200000"}) as listener,
        left.connect(listener.handle) as plain,
        listener.accept(timeout_s=PATIENCE_S) as plain_there,
        left.connect(listener.handle, policies={"path": "oblivious", "loss": "fixed"}) as own,
        listener.accept(timeout_s=PATIENCE_S) as own_there,
    ):
        assert plain.policies["path"].name == "power_of_two"
        assert own.policies["path"].name == "oblivious"
        assert own.policies["loss"].name == "fixed"
        assert own.policies["window"].name == "swift"
        assert own_there.policies["window"].params == {"window_bytes": 200_000}
        exchange(plain, plain_there)
        exchange(own, own_there)
        exchange(own_there, own)
        left.set_policy("path", "fixed")  # for all connections that use the endpoint's policies
        assert plain.policies["path"].name == "fixed"
        assert own.policies["path"].name == "oblivious"


def swap_while(here: Connection, there: Connection, swaps: list[tuple[str, str]]) -> int:
    """Sends in both directions while another thread swaps policies; returns how many swaps."""
    done = 0
    stopping = threading.Event()
    errors: list[BaseException] = []

    def swapper() -> None:
        nonlocal done
        try:
            while not stopping.is_set():
                family, policy = swaps[done % len(swaps)]
                (here if done % 2 else there).set_policy(family, policy)
                done += 1
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=swapper)
    thread.start()
    try:
        exchange(here, there, rounds=12, size=2_000_000)
        exchange(there, here, rounds=12, size=2_000_000)
    finally:
        stopping.set()
        thread.join()
    assert not errors, errors
    return done


@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_swap__under_load_nothing_is_corrupt_and_nothing_lost(loss: float) -> None:
    swaps = [
        ("window", "fixed"),
        ("path", "oblivious"),
        ("loss", "fixed"),
        ("credit", "grant"),
        ("window", "swift"),
        ("path", "power_of_two"),
        ("loss", "rack"),
        ("credit", "none"),
    ]
    with pair(fault={"loss": loss}, rto={"min": "1ms"}) as (here, there):
        assert swap_while(here, there, swaps) >= 8
        here.check()
        there.check()
        assert here._owner.counters().events_policy_failed == 0


def test_swap__of_the_whole_endpoint_reaches_live_connections() -> None:
    with pair() as (here, there):
        endpoint: Any = here._owner
        endpoint.set_policy("window", "fixed", window_bytes=123_456)
        assert here.policies["window"].params == {"window_bytes": 123_456}
        assert endpoint.policies["window"].name == "fixed"
        endpoint.set_params("window", window_bytes=200_000)
        assert here.policies["window"].params == {"window_bytes": 200_000}
        here.set_params("window", window_bytes=300_000)
        # A connection with a policy of its own keeps that policy.
        endpoint.set_params("window", window_bytes=100_000)
        assert here.policies["window"].params == {"window_bytes": 300_000}
        exchange(here, there)


def test_swap__a_file_is_compiled_once_and_runs(cache: Path) -> None:
    pytest.importorskip("numba")
    with pair() as (here, there):
        here.set_policy("window", EXAMPLE, factor=0.7)
        assert here.policies["window"].name == "mine"
        assert here.policies["window"].params["factor"] == 0.7
        (library,) = cache.glob("window_mine-*.so")
        made_ns = library.stat().st_ino
        exchange(here, there)
        here.set_policy("window", f"{EXAMPLE}:factor=0.25")
        assert here.policies["window"].params["factor"] == 0.25
        (library,) = cache.glob("window_mine-*.so")
        assert library.stat().st_ino == made_ns
        exchange(here, there)


def test_cache__what_does_not_fit_is_compiled_again(cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    from transport.compiler import cached_policy

    mine = tmp_path / "mine.py"
    shutil.copy(EXAMPLE, mine)
    first = cached_policy(mine)
    whole = first.read_bytes()
    first.write_bytes(whole[:-100])  # truncated, as if the disk had been full
    assert cached_policy(mine).read_bytes() == whole
    first.with_suffix(".sha256").write_text("0" * 64)
    assert cached_policy(mine).read_bytes() == whole
    mine.write_text(mine.read_text().replace("factor=0.5", "factor=0.6"))
    assert cached_policy(mine) != first
    helper = tmp_path / "helper.py"
    helper.write_text("def half(x):\n    return x / 2.0\n")
    mine.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from helper import half\n"
        + EXAMPLE.read_text().split("\n", 3)[3].replace("* params.factor", "* half(params.factor)")
    )


def test_cache__a_folder_that_others_can_write_to_is_refused(cache: Path) -> None:
    pytest.importorskip("numba")
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pair() as (here, _), pytest.raises(InvalidArgumentError, match="other users can write"):
        here.set_policy("window", EXAMPLE)


@pytest.mark.parametrize(
    ("family", "policy", "params", "says"),
    [
        ("window", "teleport", {}, "no window policy 'teleport': choose one of .*swift"),
        ("windows", "swift", {}, "no policy family .windows.: choose one of credit"),
        ("window", "swift", {"speed": 3}, "swift has no parameter 'speed': choose one of .*target"),
        ("window", "swift", {"target_queue_ns": 0.5}, "not a whole number"),
        ("window", "swift", {"target_queue_ns": 1 << 70}, "too large for 64 bits"),
        ("window", "path/reps", {}, "path/reps is a path policy; a window policy is wanted"),
        ("window", "swift", {"decrease_max": float("nan")}, "not a finite number"),
        ("window", "swift", {"decrease_max": [0.1, 0.2]}, "too many values: at most 1"),
        ("window", "swift", {"decrease_max": "much"}, "must be a number, not str"),
        ("window", "/nonexistent/x.so", {}, "/nonexistent/x.so"),
        ("window", "/nonexistent/x.py", {}, "no such file"),
        ("loss", EXAMPLE, {}, "is a window policy; give a loss policy"),
    ],
)
def test_set_policy__a_wrong_choice_says_why_and_changes_nothing(
    family: str, policy: Any, params: dict[str, Any], says: str
) -> None:
    pytest.importorskip("numba")
    with pair() as (here, there):
        before = here.policies
        with pytest.raises(InvalidArgumentError, match=says):
            here.set_policy(family, policy, **params)
        assert here.policies == before
        exchange(here, there, rounds=1)


def test_set_params__is_no_choice_of_a_policy() -> None:
    with pair() as (here, there):
        endpoint: Any = here._owner
        here.set_params("window", increase_segments=2)
        here.set_params("path", burst_bytes=10_000)
        endpoint.set_policy("window", "fixed")
        endpoint.set_policy("path", "oblivious")
        assert (here.policies["window"].name, here.policies["path"].name) == ("fixed", "oblivious")
        exchange(here, there)


def test_policies__one_grammar_wherever_one_is_named(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    from transport.compiler import compile_policy

    folder = tmp_path / "my dir: a=b"
    folder.mkdir()
    library = compile_policy(EXAMPLE, folder / "good.so")
    source = Path(shutil.copy(EXAMPLE, folder / "mine.py"))
    for text in (f"{library}:factor=0.25", f"{source}: factor=0.25", f" {source} : factor = 0.25 "):
        with (
            Endpoint(**LOCAL, window_policy=text) as left,
            Endpoint(**LOCAL) as right,
            right.listen(policies={"window": text, "path": "path/reps"}) as listener,
            left.connect(listener.handle) as here,
            listener.accept(timeout_s=PATIENCE_S) as there,
        ):
            assert here.policies["window"].params["factor"] == 0.25
            assert there.policies["window"] == here.policies["window"]
            assert there.policies["path"].name == "reps"
            there.set_policy("window", "window/swift: increase_segments=2")
            assert there.policies["window"].params["increase_segments"] == 2.0
    classes = f"3 window={library}:factor=0.25 path=path/reps; 4 loss=loss/rack"
    Endpoint(**LOCAL, traffic_classes=classes).close()


def test_set_params__need_a_policy_in_force() -> None:
    with pair() as (here, _), pytest.raises(InvalidArgumentError, match="no credit policy"):
        here.set_params("credit", window_bytes=1)


def test_listen__an_unknown_family_is_refused() -> None:
    with Endpoint(**LOCAL) as endpoint, pytest.raises(InvalidArgumentError, match="no policy fam"):
        endpoint.listen(policies={"speed": "swift"})
    with (
        Endpoint(**LOCAL) as endpoint,
        pytest.raises(TypeError, match="policies: must be a mapping"),
    ):
        endpoint.listen(policies="window=swift")  # type: ignore[arg-type]


def test_traffic_classes__a_wrong_entry_is_refused_at_start() -> None:
    for text, says in (
        ("x window=swift", "write a class number"),
        ("3", "write a class number"),
        ("3 window", "family=policy"),
        ("3 window=teleport", "no window policy 'teleport'"),
    ):
        with pytest.raises((KnobError, InvalidArgumentError), match=says):
            Endpoint(**LOCAL, traffic_classes=text)


def test_arrays__are_set_from_the_front() -> None:
    pytest.importorskip("numba")
    with pair(path_policy="weighted:weight=0/1/0/1") as (here, there):
        assert here.policies["path"].params["weight"][:5] == [0.0, 1.0, 0.0, 1.0, 1.0]
        here.set_params("path", weight=np.array([0.5, 0.25]))
        assert here.policies["path"].params["weight"][:4] == [0.5, 0.25, 0.0, 1.0]
        exchange(here, there)
