"""Tests verdicts by statuses of NCCL's RAS, which are made by hand in the shape of NCCL 2.28.9.

In the jobs here, process n has the id 500 + n, and is rank n of the job if a communicator has all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, strategies as st

from tests.trace.ras import all_reduces, comm, missing, rank, status, text
from transport.diagnose import Answer, Diagnosis
from transport.diagnose.finding import Finding
from transport.diagnose.ras import judged as judged_statuses
from transport.trace.nccl_ras import RasStatuses

LATER = "12:00:10"


def judged(*texts: str) -> Diagnosis:
    reader = RasStatuses()
    for one in texts:
        reader.add(one, "ras.json")
    reader.finish()
    return judged_statuses(reader.statuses)


def only(found: Diagnosis) -> Finding:
    (one,) = found.findings
    return one


def verdict(found: Diagnosis) -> tuple[str, str, bool]:
    one = only(found)
    return one.kind, one.place.name, one.certain


def twice(comms: Sequence[dict[str, Any]]) -> Diagnosis:
    """The diagnosis of a job that is the same 10 s later."""
    return judged(text(status(comms)), text(status(comms, LATER)))


def reduces(number: int, count: int, **more: Any) -> dict[str, Any]:
    """A rank of the communicator of all, with `count` AllReduces."""
    return rank(number, number, {"AllReduce": count}, **more)


# Ranks that are late.


def test_ras__a_job_that_goes_on_is_not_judged() -> None:
    found = judged(all_reduces([5, 5, 4]), all_reduces([90, 89, 90], LATER))
    assert found.findings == ()
    assert found.answer is Answer.NOT_JUDGED
    assert (found.ranks, found.missing) == (3, 0)


def test_ras__one_status_only_suspects_a_rank_that_is_behind() -> None:
    found = judged(all_reduces([301, 300, 301, 301]))
    assert verdict(found) == ("non_communication_hang", "rank 1", False)
    assert "ask RAS again" in only(found).evidence


def test_ras__a_rank_that_stays_behind_is_found() -> None:
    found = judged(all_reduces([301, 300, 301, 301]), all_reduces([301, 300, 301, 301], LATER))
    assert verdict(found) == ("non_communication_hang", "rank 1", True)
    one = only(found)
    assert one.evidence.startswith(
        "rank 1 did not launch AllReduce 301 of communicator 0xabc0 of 4 ranks, and ranks 0, 2-3 "
        "did. None of its ranks launched anything for 10 s."
    )
    operation = one.more["operation"]
    assert (operation["absent"], operation["called"]) == ([1], [0, 2, 3])
    assert (operation["function"], operation["number"], operation["comm"]) == (
        "AllReduce",
        301,
        0xABC0,
    )
    assert found.answer is Answer.FOUND


def test_ras__two_statuses_of_almost_the_same_moment_only_suspect() -> None:
    found = judged(all_reduces([301, 300]), all_reduces([301, 300], "12:00:02"))
    assert verdict(found) == ("non_communication_hang", "rank 1", False)


def test_ras__the_first_operation_that_was_not_launched_is_named() -> None:
    """Rank 2 waits in operation 303, rank 0 in 302: both wait for rank 1 in 302."""
    found = judged(all_reduces([302, 301, 303]), all_reduces([302, 301, 303], LATER))
    assert "rank 1 did not launch AllReduce 302 of" in only(found).evidence
    assert "ranks 0, 2 did" in only(found).evidence


def whole_and_pairs(*pairs: tuple[dict[str, Any], dict[str, Any]], count: int = 9) -> list[Any]:
    whole = comm(0xA, [reduces(n, count) for n in range(4)])
    return [whole, *(comm(0xB0 + at, one) for at, one in enumerate(pairs))]


def broadcasts(number: int, process: int, count: int) -> dict[str, Any]:
    return rank(number, process, {"Broadcast": count})


def test_ras__a_rank_that_waits_for_another_one_is_not_named() -> None:
    """Rank 1 waits for rank 0 in their pair, and so is behind in the other pair."""
    first = (broadcasts(0, 0, 6), broadcasts(1, 1, 7))
    second = (broadcasts(0, 1, 4), broadcasts(1, 2, 5))
    assert verdict(twice(whole_and_pairs(first, second)))[1:] == ("rank 0", True)


def test_ras__a_rank_that_goes_on_elsewhere_is_not_named() -> None:
    def at(count: int, when: str) -> str:
        pair = (broadcasts(0, 2, count), broadcasts(1, 3, count))
        whole = comm(0xA, [reduces(0, 5), reduces(1, 5), reduces(2, 4), reduces(3, 5)])
        return text(status([whole, comm(0xB, pair)], when))

    assert judged(at(4, "12:00:00"), at(80, LATER)).findings == ()


def test_ras__ranks_that_wait_for_each_other_are_suspected() -> None:
    pairs = [
        (broadcasts(0, 0, 5), broadcasts(1, 1, 6)),
        (broadcasts(0, 0, 6), broadcasts(1, 1, 5)),
    ]
    found = twice(whole_and_pairs(*pairs))
    assert (only(found).kind, only(found).certain) == ("mismatch", False)
    assert "different orders" in only(found).evidence


def test_ras__a_rank_behind_in_two_communicators_is_one_finding() -> None:
    whole = comm(0xA, [reduces(0, 9), reduces(1, 8), reduces(2, 9), reduces(3, 9)])
    pair = comm(0xB, (broadcasts(0, 1, 8), broadcasts(1, 3, 9)))
    found = twice([pair, whole])
    assert verdict(found) == ("non_communication_hang", "rank 1", True)
    assert only(found).more["operation"]["comm"] == 0xA


def test_ras__without_a_communicator_of_all_the_process_is_named() -> None:
    pairs = [
        comm(n, [reduces(0, 5) | {"pid": 10 + n}, reduces(1, 5) | {"pid": 20 + n}]) for n in (3, 5)
    ]
    pairs[1]["ranks"][1]["collective_counts"]["AllReduce"] = 4
    one = only(twice(pairs))
    assert (one.place.name, one.place.ranks) == ("process 25 on 10.0.0.1", ())


@given(
    st.lists(st.integers(0, 50), min_size=2, max_size=8),
    st.lists(st.integers(1, 50), min_size=8, max_size=8),
)
def test_ras__ranks_that_all_go_on_are_never_blamed(first: list[int], more: list[int]) -> None:
    second = [a + b for a, b in zip(first, more, strict=False)]
    assert judged(all_reduces(first), all_reduces(second, LATER)).findings == ()


# Ranks that called something else.


def other_call(*, count: int = 9) -> list[dict[str, Any]]:
    ranks = [rank(n, n, {"AllReduce": count, "Broadcast": 2}) for n in range(3)]
    return [comm(0xA, [*ranks, rank(3, 3, {"AllReduce": count - 1, "Broadcast": 3})])]


def test_ras__another_function_is_a_mismatch() -> None:
    found = twice(other_call())
    assert verdict(found) == ("mismatch", "rank 3", True)
    assert only(found).evidence.startswith(
        "rank 3 launched 1 more Broadcast and 1 less AllReduce in communicator 0xa than ranks 0-2."
    )


def test_ras__another_function_in_a_job_that_goes_on_is_suspected() -> None:
    found = judged(text(status(other_call())), text(status(other_call(count=20), LATER)))
    assert verdict(found) == ("mismatch", "rank 3", False)


def test_ras__of_two_ranks_that_differ_both_are_named() -> None:
    two = [rank(0, 0, {"AllReduce": 5}), rank(1, 1, {"AllReduce": 4, "Broadcast": 1})]
    assert verdict(twice([comm(0xA, two)])) == ("mismatch", "ranks 0-1", True)


# Processes that do not answer.


def test_ras__a_silent_process_is_suspected_and_then_found() -> None:
    first, later = all_reduces([9, 9, None]), all_reduces([9, 9, None], LATER)
    assert verdict(judged(first)) == ("non_communication_hang", "rank 2", False)
    found = judged(first, later)
    assert verdict(found) == ("non_communication_hang", "rank 2", True)
    assert (found.ranks, found.missing) == (2, 1)
    assert "ps -o pid,stat,wchan -p 502 on 10.0.0.1" in only(found).advice


def test_ras__while_others_go_on_a_silent_process_is_suspected() -> None:
    found = judged(all_reduces([9, 9, None]), all_reduces([30, 30, None], LATER))
    assert verdict(found) == ("non_communication_hang", "rank 2", False)


def test_ras__a_process_that_answers_again_is_no_finding() -> None:
    assert judged(all_reduces([9, 9, None]), all_reduces([30, 30, 30], LATER)).findings == ()


def test_ras__a_process_that_is_considered_dead_is_found_at_once() -> None:
    """Without an error of NCCL it may also be stopped, so it is no crash."""
    found = judged(all_reduces([9, None], considered_dead=True))
    assert verdict(found) == ("non_communication_hang", "rank 1", True)
    assert "considers it dead" in only(found).evidence


def gone(**of_missing: bool) -> list[dict[str, Any]]:
    """Rank 2 is gone, and NCCL of rank 0 says that a peer failed."""
    return [comm(0xA, [reduces(0, 9, error=6), reduces(1, 9)], [missing(2, 2, **of_missing)])]


def test_ras__silence_and_an_error_of_a_peer_are_a_crash() -> None:
    found = judged(text(status(gone())))
    assert verdict(found) == ("crash", "rank 2", False)
    assert "NCCL of rank 0 reports a remote process error (6)" in only(found).evidence
    assert verdict(twice(gone())) == ("crash", "rank 2", True)
    dead = judged(text(status(gone(considered_dead=True))))
    assert verdict(dead) == ("crash", "rank 2", True)


def test_ras__processes_of_a_host_are_one_finding() -> None:
    found = twice([comm(0xA, [reduces(0, 9)], [missing(n, n) for n in (1, 2, 3)])])
    assert verdict(found) == ("non_communication_hang", "ranks 1-3", True)


def test_ras__a_process_that_is_missing_in_two_communicators_is_one_finding() -> None:
    whole = comm(0xA, [reduces(0, 9), reduces(1, 9)], [missing(2, 2)])
    pair = comm(0xB, [broadcasts(0, 0, 3)], [missing(1, 2)])
    assert verdict(twice([pair, whole])) == ("non_communication_hang", "rank 2", True)


def test_ras__a_process_that_ended_its_communicator_is_suspected() -> None:
    found = twice([comm(0xA, [reduces(0, 9)], [missing(1, 1, unresponsive=False)])])
    assert verdict(found) == ("non_communication_hang", "rank 1", False)
    assert "destroyed or aborted" in only(found).evidence


def test_ras__a_communicator_that_is_being_ended_is_not_judged() -> None:
    ending = reduces(0, 9)
    ending["status"]["destroy_flag"] = True
    assert twice([comm(0xA, [ending, reduces(1, 7)], [missing(2, 2)])]).findings == ()


# Starts and errors.


def test_ras__a_communicator_that_is_not_made_is_an_initialization_hang() -> None:
    starting = [comm(0xA, [reduces(n, 0, init=7) for n in range(2)])]
    found = judged(text(status(starting)), text(status(starting, "12:01:10")))
    assert verdict(found) == ("initialization_hang", "communicator 0xa", True)
    assert verdict(twice(starting)) == ("initialization_hang", "communicator 0xa", False)


def test_ras__ranks_that_wait_to_start_with_a_silent_one_name_it() -> None:
    starting = [comm(0xA, [reduces(0, 0, init=7)], [missing(1, 1)])]
    assert verdict(twice(starting)) == ("initialization_hang", "rank 1", False)


def test_ras__an_error_is_reported() -> None:
    found = judged(text(status([comm(0xA, [reduces(0, 9), reduces(1, 9, error=2)])])))
    assert verdict(found) == ("communication_hang", "rank 1", True)
    assert only(found).evidence == (
        "NCCL of rank 1 reported error 2 (system error) of communicator 0xa."
    )


def test_ras__a_remote_error_blames_no_rank_that_answers() -> None:
    found = judged(text(status([comm(0xA, [reduces(0, 9), reduces(1, 9, error=6)])])))
    assert only(found).place.ranks == ()
    assert only(found).certain


def test_ras__equal_counts_that_do_not_move_are_suspected() -> None:
    found = judged(all_reduces([9, 9]), all_reduces([9, 9], LATER))
    assert (only(found).kind, only(found).certain) == ("communication_hang", False)
    assert found.answer is Answer.NOT_JUDGED


def test_ras__an_error_of_its_own_counts_more_than_that_of_a_peer() -> None:
    ranks = [reduces(0, 9, error=6), reduces(1, 9, error=1)]
    found = judged(text(status([comm(0xA, ranks)])))
    assert verdict(found) == ("communication_hang", "rank 1", True)
    assert "unhandled CUDA error" in only(found).evidence
    beside = judged(text(status([comm(0xA, ranks, [missing(2, 2)])])))
    kinds = [(one.kind, one.place.name, one.certain) for one in beside.findings]
    assert kinds == [("communication_hang", "rank 1", True), ("crash", "rank 2", False)]


def test_ras__the_dead_are_certain_beside_those_that_only_do_not_answer() -> None:
    silent = [missing(1, 1, considered_dead=True), missing(2, 2)]
    found = judged(text(status([comm(0xA, [reduces(0, 9)], silent)])))
    assert [(one.place.name, one.certain) for one in found.findings] == [
        ("rank 1", True),
        ("rank 2", False),
    ]


def test_ras__a_rank_that_runs_and_does_not_come_to_the_start_is_named() -> None:
    starting = [comm(0xA, [reduces(0, 0, init=7)], [missing(1, 1, unresponsive=False)])]
    found = twice(starting)
    assert verdict(found) == ("initialization_hang", "rank 1", False)
    assert "answers RAS, and others wait for it" in only(found).evidence


def test_ras__a_communicator_that_a_rank_ended_hides_no_late_rank() -> None:
    whole = comm(0xA, [reduces(0, 9), reduces(1, 8), reduces(2, 9)])
    ended = comm(0xB, [broadcasts(0, 0, 3)], [missing(1, 2, unresponsive=False)])
    found = twice([whole, ended])
    assert [(one.place.name, one.certain) for one in found.findings] == [
        ("rank 1", True),
        ("rank 2", False),
    ]
