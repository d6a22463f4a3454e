"""Finds ranks that call another operation than the others of their communicator."""

from __future__ import annotations

from collections import Counter

import numpy as np

from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place

QUERY = (
    "SELECT process, comm, function, sequence, count, datatype, begin_ns FROM operations "
    "WHERE kind = 'collective' ORDER BY comm, process, begin_ns"
)


SHIFT_MAX = 2048  # calls by which the files of two ranks may begin apart
COMPARED = 10_000  # calls that are compared at most
Call = tuple[str, int, str, int]  # function, count, datatype, root


def mismatches(facts: Facts) -> list[Finding]:
    """For each communicator, the first call in which ranks called different operations."""
    calls = facts.calls
    made = []
    for comm in np.unique(calls["comm_id"]).tolist():
        here = np.flatnonzero((calls["comm_id"] == comm) & (calls["kind"] == "collective"))
        found = _first_mismatch(facts, here)
        if found is not None:
            made.append(found)
    return sorted(made, key=lambda one: one.from_ns)


def _first_mismatch(facts: Facts, rows: np.ndarray) -> Finding | None:
    """Compares the calls of one communicator; `rows`: their rows, sorted by process and begin."""
    calls = facts.calls
    said = list(
        zip(
            *(calls[name][rows].tolist() for name in ("function", "count", "datatype", "root")),
            strict=True,
        )
    )
    by_process: dict[int, list[int]] = {}
    for at, process in enumerate(calls["process"][rows].tolist()):
        by_process.setdefault(process, []).append(at)
    if len(by_process) < 2:
        return None
    by_process = _from_one_number(by_process, calls["sequence"][rows].astype(np.int64))
    longest = max(map(len, by_process.values()))
    # Old trace files may be missing, so that the ranks' first recorded calls have different
    # numbers. Then the n-th calls of two ranks are not the same call and cannot be compared.
    if len({said[mine[0]] for mine in by_process.values()}) > 1 and longest > 1:
        firsts = Counter(int(calls["sequence"][rows[mine[0]]]) for mine in by_process.values())
        if len(firsts) > 1:
            return None
    for turn in range(longest):
        at_turn = {one: mine[turn] for one, mine in by_process.items() if turn < len(mine)}
        counts = Counter(said[at] for at in at_turn.values())
        if len(counts) < 2:
            continue
        if _uneven(counts) or _vague(counts):
            continue
        if not _gapless(calls["function"][rows], calls["sequence"][rows], by_process):
            return None
        usual, agreeing = counts.most_common(1)[0]
        wrong = sorted(one for one, at in at_turn.items() if said[at] != usual)
        right = next(one for one, at in at_turn.items() if said[at] == usual)
        if not facts.numbered and _shifted(
            *([said[at] for at in by_process[one]] for one in (right, wrong[0]))
        ):
            return None
        return _finding(facts, rows, at_turn, wrong, usual, agreeing)
    return None


def _from_one_number(by_process: dict[int, list[int]], numbers: np.ndarray) -> dict[int, list[int]]:
    """The calls of each process, without those before the first number that all of them have.

    A record that keeps only the last calls begins with another one at each rank.
    """
    steady = all((np.diff(numbers[mine]) == 1).all() for mine in by_process.values())
    first = max(int(numbers[mine[0]]) for mine in by_process.values())
    if not steady or first > min(int(numbers[mine[-1]]) for mine in by_process.values()):
        return by_process
    return {one: [at for at in mine if numbers[at] >= first] for one, mine in by_process.items()}


def _uneven(counts: Counter[Call]) -> bool:
    """Whether the sizes of an operation differ by design: an exchange of tokens between experts has
    another size at each rank, and one wrong rank makes two sizes."""
    alike = {(function, datatype, root) for function, _, datatype, root in counts}
    return len(alike) == 1 and len(counts) > 2


def _vague(counts: Counter[Call]) -> bool:
    """Whether calls of one function differ only because a rank's trace does not tell their size."""
    one_function = len({function for function, *_ in counts}) == 1
    return one_function and any(not datatype for _, _, datatype, _ in counts)


def _gapless(functions: np.ndarray, numbers: np.ndarray, by_process: dict[int, list[int]]) -> bool:
    """Whether no process lacks calls between its first and its last one.

    NCCL counts the calls of each function, PyTorch those of all functions of a communicator.
    """
    for mine in by_process.values():
        own, names = numbers[mine].astype(np.int64), functions[mine]
        if (np.diff(own) == 1).all():
            continue
        if any((np.diff(own[names == name]) > 1).any() for name in np.unique(names)):
            return False
    return True


def _shifted(one: list[Call], other: list[Call]) -> bool:
    """Whether two ranks called the same, but one file begins a few calls later than the other.

    one: the calls of a rank that are right. If they repeat, files differ by less than a period.
    """
    one, other = one[:COMPARED], other[:COMPARED]
    most = min(SHIFT_MAX, len(one) // 2, len(other) // 2)
    period = next((shift for shift in range(1, most + 1) if one[shift:] == one[:-shift]), most + 1)
    for shift in range(1, period):
        for late, early in ((one, other), (other, one)):
            length = min(len(late), len(early) - shift)
            if early[shift : shift + length] == late[:length]:
                return True
    return False


def _call_text(function: str, count: int) -> str:
    """A call in words; 0 elements: the trace may not tell how many."""
    return f"{function} of {count} elements" if count > 0 else function


def _finding(
    facts: Facts,
    rows: np.ndarray,
    at_turn: dict[int, int],
    wrong: list[int],
    usual: Call,
    agreeing: int,
) -> Finding:
    calls = facts.calls
    other = rows[at_turn[wrong[0]]]
    names = ", ".join(facts.name(one) for one in wrong[:4])
    ranks = tuple(facts.processes[one].rank for one in wrong)
    when = int(min(calls["begin_ns"][rows[at]] for at in at_turn.values()))
    return Finding(
        "mismatch",
        Place("rank", names, ranks),
        when,
        facts.end_ns,
        0.97,
        True,
        f"{names} called {_call_text(calls['function'][other], int(calls['count'][other]))}, "
        f"where {agreeing} other ranks of the communicator called {_call_text(*usual[:2])}.",
        QUERY,
        "Look for a branch in the program that depends on the rank or on the data.",
    )
