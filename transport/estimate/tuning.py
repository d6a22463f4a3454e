"""Chooses algorithm, protocol and channels for NCCL, from measurements of NCCL with each.

`python -m bench nccl` measures NCCL's own choice (the contender weft) and fixed ones (weft Ring LL
2, and so on). A fixed choice becomes a rule for a size only if it is clearly faster than NCCL's.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transport.estimate.samples import RESULT_BYTES_MAX, SamplesError
from transport.ground.regular import read_text
from transport.ground.units import percent

OWN = "weft"  # the contender that leaves the choice to NCCL
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
ALGORITHMS, PROTOCOLS = ("ring", "tree", "pat"), ("ll", "simple")
CHANNELS_MAX = 64
ROUNDS_MIN = 3  # fewer rounds do not show how much repeats differ
MARGIN = 0.02  # share by which a choice's slowest round must beat NCCL's fastest
HEAD = "weft_tune 1"


@dataclass(frozen=True)
class Choice:
    """An algorithm and a protocol of NCCL. channels: number of them; 0: NCCL chooses it."""

    algorithm: str
    protocol: str
    channels: int


@dataclass(frozen=True)
class Rule:
    """A choice for sizes from bytes_min to bytes_max. gain: NCCL's own time divided by the
    choice's, minus 1; the least of the measured sizes."""

    operation: str
    ranks: int
    bytes_min: int
    bytes_max: int
    choice: Choice
    gain: float


def choice_of(contender: str) -> Choice | None:
    """The fixed choice in a contender's name, as in "weft Ring LL 2"; None: it has none."""
    words = contender.lower().split()
    if len(words) not in (3, 4) or words[0] != OWN:
        return None
    if words[1] not in ALGORITHMS or words[2] not in PROTOCOLS:
        return None
    channels = words[3] if len(words) == 4 else "0"
    if not channels.isdecimal() or int(channels) > CHANNELS_MAX:
        return None
    return Choice(words[1], words[2], int(channels))


def _fits(choice: Choice | None, operation: str) -> bool:
    """Whether NCCL has the algorithm for the operation."""
    if choice is None or choice.algorithm == "ring":
        return choice is not None
    return (choice.algorithm == "tree") == (operation == "all_reduce")


def rules_of(files: Sequence[Path]) -> list[Rule]:
    """The rules that results of bench nccl justify. SamplesError if times for them are missing."""
    made = []
    for file in files:
        ranks, times = _times(file)
        for operation in OPERATIONS:
            sizes = sorted({size for name, size, _ in times if name == operation})
            best = [_best(times, operation, size) for size in sizes]
            made += _joined(operation, ranks, sizes, best)
    return made


def _times(file: Path) -> tuple[int, dict[tuple[str, int, str], list[float]]]:
    """The number of ranks, and (operation, size, contender) -> times of the rounds."""
    found: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    try:
        document = json.loads(read_text(file, RESULT_BYTES_MAX))
        ranks = int(document["gpus"])
        for row in document.get("rounds") or document["rows"]:
            key = (str(row["operation"]), int(row["size_bytes"]), str(row["contender"]))
            found[key].append(float(row["time_us"]))
    except OSError as error:
        raise SamplesError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise SamplesError(f"{file} is no result of python -m bench nccl: give its JSON") from None
    names = {name for _, _, name in found}
    if OWN not in names or not any(choice_of(name) for name in names):
        raise SamplesError(
            f"{file} has to have rows of {OWN} and of fixed choices, as 'weft Ring LL 2': "
            "python -m bench nccl --choices (in the repository, not in the wheel)"
        )
    return ranks, found


def _best(
    times: dict[tuple[str, int, str], list[float]], operation: str, size: int
) -> tuple[Choice, float] | None:
    """The fastest choice and its gain; None: NCCL's own is as fast, or there are too few rounds."""
    own = times.get((operation, size, OWN), [])
    if len(own) < ROUNDS_MIN:
        return None
    rivals = [
        (statistics.median(each), name)
        for (which, bytes_, name), each in times.items()
        if (which, bytes_) == (operation, size)
        and _fits(choice_of(name), operation)
        and len(each) >= ROUNDS_MIN
    ]
    if not rivals:
        return None
    took, name = min(rivals)
    choice = choice_of(name)
    # The choice's slowest round must beat the fastest round of NCCL's own choice.
    if choice is None or max(times[operation, size, name]) * (1 + MARGIN) >= min(own):
        return None
    return choice, statistics.median(own) / took - 1


def _joined(
    operation: str, ranks: int, sizes: list[int], best: list[tuple[Choice, float] | None]
) -> list[Rule]:
    """A rule for each run of sizes with one choice.

    Between two sizes, the larger one's choice holds from the geometric mean on. There are no rules
    beyond the sizes that were measured.
    """
    made: list[Rule] = []
    for at, found in enumerate(best):
        if found is None:
            continue
        low = _between(sizes[at - 1], sizes[at]) if at else sizes[at]
        high = _between(sizes[at], sizes[at + 1]) - 1 if at + 1 < len(sizes) else sizes[at]
        choice, gain = found
        before = made[-1] if made else None
        if before is not None and before.choice == choice and before.bytes_max == low - 1:
            low, gain = before.bytes_min, min(gain, before.gain)
            made.pop()
        made.append(Rule(operation, ranks, low, high, choice, gain))
    return made


def _between(small: int, large: int) -> int:
    return math.isqrt(small * large)


def text_of(rules: Sequence[Rule], source: str) -> str:
    """The file for WEFT_TUNE."""
    columns = "operation ranks nodes least-bytes most-bytes algorithm protocol channels"
    lines = [HEAD, f"# of {source}", f"# {columns}"]
    for one in rules:
        choice = one.choice
        lines.append(
            f"{one.operation} {one.ranks} 0 {one.bytes_min} {one.bytes_max} {choice.algorithm} "
            f"{choice.protocol} {choice.channels}  # {percent(one.gain, 0, signed=True)}"
        )
    return "\n".join(lines) + "\n"
