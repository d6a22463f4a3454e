"""Measured times of operations: from results of `bench nccl`, and from traces of jobs."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.estimate.collectives import ALGORITHMS
from transport.estimate.names import matched
from transport.estimate.networks import SLOWDOWN_MAX, Slowdown
from transport.ground.regular import read_text

if TYPE_CHECKING:
    from transport.trace.store import Store

# NCCL's functions -> operations of estimates.
RESULT_BYTES_MAX = 256 << 20  # of a result of a bench
FUNCTIONS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all_to_all",
    "AllToAll": "all_to_all",
}
# An operation has begun when its last rank uses the network, and has ended when no rank does.
TIMES = """
WITH uses AS (
  SELECT o.process, c.comm_id, o.function, o.sequence, any_value(o.count) AS count,
    any_value(o.datatype) AS datatype, any_value(lower(o.algorithm)) AS algorithm,
    any_value(c.ranks) AS ranks,
    min(h.begin_ns) AS begin_ns, max(h.end_ns) AS end_ns, bool_and(h.end_ns IS NOT NULL) AS ended
  FROM operations o JOIN comms c ON c.process = o.process AND c.id = o.comm
  JOIN channels h ON h.process = o.process AND h.operation = o.id
  GROUP BY ALL
)
SELECT function, any_value(algorithm), any_value(count), any_value(datatype), any_value(ranks),
  max(end_ns) - max(begin_ns)
FROM uses GROUP BY comm_id, function, sequence
HAVING bool_and(ended) AND count(*) = any_value(ranks) AND any_value(ranks) > 1
"""


class SamplesError(ValueError):
    """A file has no usable times."""


@dataclass(frozen=True)
class Sample:
    """The time of one operation. size_bytes: as in nccl-tests. algorithm: None: not known."""

    operation: str
    ranks: int
    nodes: int
    size_bytes: float
    time_ns: float
    algorithm: str | None = None


def slowdown_of(file: Path, contender: str) -> Slowdown:
    """The median of a contender's rows in a result of `python -m bench step --beside`."""
    try:
        rows = json.loads(read_text(file, RESULT_BYTES_MAX))["rows"]
        known = sorted({str(row.get("contender")) for row in rows if "slowdown" in row})
        contender = matched(contender, known)
        found = [
            [row["slowdown"][key] for key in ("computation", "communication")]
            for row in rows
            if row.get("contender") == contender and "slowdown" in row
        ]
    except OSError as error:
        raise SamplesError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SamplesError(
            f"{file} is not a result of python -m bench step --beside: give its JSON"
        ) from None
    if not found:
        raise SamplesError(
            f"{file} has no slowdown of {contender}, only of {', '.join(known) or 'nothing'}"
        )
    for value in (each for pair in found for each in pair):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= SLOWDOWN_MAX:
            raise SamplesError(
                f"{file}: slowdown: {value!r}: must be a number, at most {SLOWDOWN_MAX:g}"
            )
    # By noise, computation and communication can seem faster together than alone: factor below 1.
    times = (max(statistics.median(each), 1.0) for each in zip(*found, strict=True))
    return Slowdown(*times)


def of_bench(file: Path, contender: str) -> list[Sample]:
    """The times of one contender in a result of `python -m bench nccl`, those of each round."""
    try:
        document = json.loads(read_text(file, RESULT_BYTES_MAX))
        rows, ranks = document.get("rounds") or document["rows"], int(document["gpus"])
        known = sorted({str(row["contender"]) for row in rows})
        contender = matched(contender, known)
        made = [
            Sample(
                str(row["operation"]),
                ranks,
                ranks,
                float(row["size_bytes"]),
                float(row["time_us"]) * 1e3,
            )
            for row in rows
            if row["contender"] == contender
            and row["operation"] in ALGORITHMS
            and not row.get("wrong")
        ]
    except OSError as error:
        raise SamplesError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise SamplesError(f"{file} is no result of python -m bench nccl: give its JSON") from None
    if not made:
        others = f"but of {', '.join(known)}" if known else "nor of any other contender"
        raise SamplesError(f"{file} has no rows of {contender}, {others}")
    return _usable(made, str(file))


def of_trace(store: Store, folder: Path) -> list[Sample]:
    """The operations of a trace that all their ranks have ended."""
    from transport.ground.collectives import ELEMENT_BYTES, whole_bytes

    made = []
    for function, algorithm, count, datatype, ranks, time_ns in store.rows(TIMES):
        width = ELEMENT_BYTES.get(datatype, 0)
        operation = FUNCTIONS.get(function, "")
        known = ALGORITHMS.get(operation, ())
        # NVLS, CollNet and others have no model.
        is_modelled = not algorithm or algorithm in known or known == ("pairs",)
        if known and width and is_modelled:
            size = whole_bytes(function, int(count) * width, int(ranks))
            # Links inside a node are not told apart: every rank counts as a node.
            made.append(
                Sample(
                    operation,
                    int(ranks),
                    int(ranks),
                    float(size),
                    float(time_ns),
                    algorithm if algorithm in known else None,
                )
            )
    if not made:
        names = ", ".join(sorted(FUNCTIONS))
        raise SamplesError(f"{folder} has no operation that all its ranks have ended, of {names}")
    return _usable(made, str(folder))


def _usable(samples: Sequence[Sample], where: str) -> list[Sample]:
    kept = [
        one
        for one in samples
        if 0 < one.time_ns < math.inf and 0 < one.size_bytes < math.inf and one.ranks > 1
    ]
    if not kept:
        raise SamplesError(f"{where} has no operation of several ranks with a size and a time")
    return kept


def medians(samples: Sequence[Sample]) -> Iterator[tuple[Sample, float]]:
    """One sample for each operation, shape and size, with the median time; and its spread.

    The spread is the range of the middle half of the times divided by the median; 0: one sample.
    """
    groups: dict[tuple[Any, ...], list[float]] = {}
    for one in samples:
        key = (one.operation, one.ranks, one.nodes, one.size_bytes, one.algorithm or "")
        groups.setdefault(key, []).append(one.time_ns)
    for (operation, ranks, nodes, size, algorithm), times in sorted(groups.items()):
        times.sort()
        count = len(times)
        median = (times[(count - 1) // 2] + times[count // 2]) / 2
        spread = (times[(3 * count - 1) // 4] - times[count // 4]) / median if count > 1 else 0.0
        yield Sample(operation, ranks, nodes, size, median, algorithm or None), spread
