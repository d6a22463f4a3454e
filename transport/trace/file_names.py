"""Host, process and rank in the names that programs give files of traces."""

from __future__ import annotations

import re

_ENDINGS = r"(?:\.(?:pt|trace|json|jsonl|log|et|sqlite|nsys-rep|gz))*"
# Names that tensorboard_trace_handler gives its files: host, process id, time.
_HANDLER = re.compile(rf"(.{{1,200}})_(\d{{1,9}})\.\d{{1,20}}\.pt\.trace{_ENDINGS}")
# Names with the number of a training step: worker0_step_12.1694128201545.pt.trace.json.
_STEP = re.compile(r"(.{1,200}?)[_.-]step[_.-]?\d{1,12}(?!\d).{0,200}", re.IGNORECASE)
_RANK = re.compile(r"(?<![a-z])rank[-_.= ]{0,2}(\d{1,9})(?!\d)", re.IGNORECASE)
_LAST = re.compile(rf"(?:^|[._-])(\d{{1,9}}){_ENDINGS}$", re.IGNORECASE)


class NamedError(ValueError):
    """The name of a file names several ranks. The text says how to name it."""


def host_of(name: str) -> tuple[str, int | None]:
    """The host and the process id in a file's name; ("", None): it tells neither."""
    step = _STEP.fullmatch(name)
    if step is not None:
        return ("" if _RANK.search(step[1]) else step[1]), None
    named = _HANDLER.fullmatch(name)
    if named is None or _RANK.search(name):
        return "", None
    return named[1], int(named[2])


def rank_of(name: str, last_number: bool = False) -> int | None:
    """The rank in a file's name: 3 of rank3.json, trace_rank_3.json, rank-3.Apr_03.pt.trace.json.

    last_number: a name without the word rank tells it by the number at its end: report.3.sqlite,
    but not report3.sqlite, which is the third report.
    NamedError if the name has several ranks.
    """
    found = {int(number) for number in _RANK.findall(name)}
    if len(found) > 1:
        ranks = " and ".join(map(str, sorted(found)))
        raise NamedError(
            f"its name has the ranks {ranks}: name it with one rank, as in rank{min(found)}.json"
        )
    if found:
        return found.pop()
    last = _LAST.search(name) if last_number else None
    return int(last[1]) if last is not None else None
