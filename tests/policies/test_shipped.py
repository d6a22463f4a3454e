"""Tests the loss policies rack (the default) and fixed, interpreted: lost segments and timers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from congestion.registry import find

from .rig import US, Rig


def judge(rig: Rig, hook: str = "on_ack", **fields: Any) -> Mapping[str, Any]:
    usual = {"path": 1, "rtt_min_ns": 80 * US, "srtt_ns": 100 * US, "rto_ns": 1_000 * US}
    return rig.call(hook, **(usual | fields))


def test_rack__what_was_sent_a_window_before_the_newest_delivered_is_lost() -> None:
    rig = Rig(find("loss", "rack"), 4)
    answer = judge(
        rig, now_ns=10_000 * US, newest_acked_sent_ns=9_900 * US, oldest_inflight_sent_ns=9_890 * US
    )
    assert answer["lost_sent_before_ns"] == (9_900 - 20) * US  # reordering window: 80 us / 4
    assert answer["next_check_ns"] == (9_890 + 100 + 20) * US + 1
    later = judge(
        rig,
        "on_timer",
        now_ns=answer["next_check_ns"],
        newest_acked_sent_ns=9_900 * US,
        oldest_inflight_sent_ns=9_890 * US,
    )
    assert 9_890 * US < later["lost_sent_before_ns"] <= 9_900 * US + 1


def test_rack__a_hole_in_the_newest_burst_is_lost_after_the_reordering_window() -> None:
    rig = Rig(find("loss", "rack"), 4)
    # Send times of a burst's segments are a nanosecond apart. The last segment was delivered.
    burst: dict[str, Any] = {
        "newest_acked_sent_ns": 9_900 * US + 6,
        "oldest_inflight_sent_ns": 9_900 * US,
    }
    answer = judge(rig, now_ns=10_000 * US + 6, **burst)
    assert answer["lost_sent_before_ns"] <= 9_900 * US
    assert answer["next_check_ns"] == 10_020 * US + 1
    later = judge(rig, "on_timer", now_ns=answer["next_check_ns"], **burst)
    assert later["lost_sent_before_ns"] == 9_900 * US + 1


def test_rack__what_was_sent_with_or_after_the_newest_delivered_waits_for_the_timeout() -> None:
    rig = Rig(find("loss", "rack"), 4)
    tail: dict[str, Any] = {
        "newest_acked_sent_ns": 9_900 * US,
        "oldest_inflight_sent_ns": 9_900 * US + 1,
    }
    answer = judge(rig, now_ns=10_000 * US, **tail)
    assert answer["lost_sent_before_ns"] <= 9_900 * US
    assert answer["next_check_ns"] == -1


def test_rack__the_first_timeout_gives_up_the_oldest_alone_the_second_all() -> None:
    rig = Rig(find("loss", "rack"), 4)
    fields: dict[str, Any] = {"newest_acked_sent_ns": -1, "oldest_inflight_sent_ns": 9_000 * US}
    first = judge(rig, "on_timer", now_ns=10_500 * US, **fields)
    assert first["lost_sent_before_ns"] == 9_000 * US + 1
    second = judge(rig, "on_timer", now_ns=11_600 * US, **fields)
    assert second["lost_sent_before_ns"] == 11_600 * US  # after two timeouts, all segments are lost
    judge(rig, now_ns=11_700 * US, newest_acked_sent_ns=11_650 * US)  # resets the count of timeouts
    again = judge(rig, "on_timer", now_ns=12_800 * US, **(fields | {"newest_acked_sent_ns": -1}))
    assert again["lost_sent_before_ns"] == 9_000 * US + 1


def test_rack__the_window_grows_with_needless_resends_up_to_the_timeout() -> None:
    rig = Rig(find("loss", "rack"), 4)
    horizons = [
        judge(
            rig,
            now_ns=(10_000 + i) * US,
            newest_acked_sent_ns=(9_900 + i) * US,
            spurious_segments=1,
        )["lost_sent_before_ns"]
        // US
        - i
        for i in range(9)
    ]
    # The reordering window doubles from a quarter of 80 us up to the timeout of 1 ms.
    assert horizons[:4] == [9_860, 9_820, 9_740, 9_580]
    assert horizons[-1] == 8_900
    # The reordering window halves every 1,024 round trips (81.92 ms) without a needless resend.
    calm = [
        judge(rig, now_ns=at * US, newest_acked_sent_ns=(at - 100) * US)["lost_sent_before_ns"]
        // US
        - at
        for at in range(100_000, 1_600_000, 90_000)
    ]
    assert calm[0] == -1_100
    # Segments sent before this are lost: 100 us for the age of the newest acknowledged segment, and
    # 20 us (a quarter of the RTT of 80 us) for the least reordering window.
    assert calm[-1] == -120
    assert calm == sorted(calm)


def test_rack__nothing_delivered_means_no_verdict_before_the_timeout() -> None:
    rig = Rig(find("loss", "rack"), 4)
    fields: dict[str, Any] = {"newest_acked_sent_ns": -1, "oldest_inflight_sent_ns": 9_000 * US}
    assert judge(rig, now_ns=9_100 * US, **fields)["lost_sent_before_ns"] == -1
    early = judge(rig, "on_timer", now_ns=9_999 * US, **fields)
    assert (early["lost_sent_before_ns"], early["next_check_ns"]) == (-1, -1)
    late = judge(rig, "on_timer", now_ns=10_000 * US, **fields)
    assert late["lost_sent_before_ns"] > 9_000 * US


@pytest.mark.parametrize("hook", ["on_ack", "on_timer"])
def test_rack__never_loses_what_was_sent_after_the_newest_delivered(hook: str) -> None:
    rig = Rig(find("loss", "rack"), 4)
    answer = judge(
        rig,
        hook,
        now_ns=20_000 * US,
        newest_acked_sent_ns=19_500 * US,
        oldest_inflight_sent_ns=19_600 * US,
    )
    assert answer["lost_sent_before_ns"] <= 19_500 * US + 1


def test_fixed_loss__by_age() -> None:
    rig = Rig(find("loss", "fixed"))
    assert judge(rig, now_ns=5_000 * US)["lost_sent_before_ns"] == -1
    assert judge(rig, "on_timer", now_ns=5_000 * US)["lost_sent_before_ns"] == 4_000 * US + 1
    assert judge(rig, "on_timer", now_ns=500 * US)["lost_sent_before_ns"] == -1
