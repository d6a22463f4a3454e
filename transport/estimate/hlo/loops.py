"""How often the loops of an HLO program run.

XLA notes the count where it knows it (known_trip_count in backend_config). Else it is found for
loops that count one element of their state from a constant to a constant, as `for` loops and scans
do (xla/service/while_loop_analysis.cc does the same).
"""

from __future__ import annotations

import re

from transport.estimate.hlo.text import (
    Computation,
    HloError,
    Instruction,
    Module,
    number_of,
)

TRIPS_MAX = 1 << 62
HOPS_MAX = 64  # copies and fusions that are looked through
_KNOWN = re.compile(r'known_trip_count\\?"?\s*:\s*\{\s*\\?"?n\\?"?\s*:\s*\\?"?([^"\\,}\s]{0,64})')
_WHOLE = re.compile(r"[0-9]{1,64}")
_INTEGER = re.compile(r"-?[0-9]{1,19}")
PASSED_ON = {"copy", "bitcast", "convert", "reshape", "copy-done", "copy-start"}
MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}


def trips_of(loop: Instruction, within: Computation, module: Module) -> int | None:
    """How often the body of a `while` runs; None: not known."""
    match = _KNOWN.search(loop.attributes.get("backend_config", ""))
    if match is not None and not _WHOLE.fullmatch(match[1]):
        raise HloError(
            f"line {loop.line}: {loop.name} has the known_trip_count {match[1]!r}: must be a whole "
            "number from 0 on"
        )
    trips = int(match[1]) if match is not None else _counted(loop, within, module)
    if trips is not None and not 0 <= trips <= TRIPS_MAX:
        raise HloError(
            f"line {loop.line}: {loop.name} runs {trips} times: at most 2^62 are counted"
        )
    return trips


def _counted(loop: Instruction, within: Computation, module: Module) -> int | None:
    condition, body = module.called(loop, "condition"), module.called(loop, "body")
    test = _test(condition, module)
    if test is None or not loop.operands:
        return None
    place, direction, limit = test
    step = _step(body, place, module)
    start = _element(within, loop.operands[0], place)
    if step is None or start is None:
        return None
    return _iterations(start, step, direction, limit)


def _iterations(start: int, step: int, direction: str, limit: int) -> int | None:
    if direction in ("LE", "GE"):
        limit += 1 if direction == "LE" else -1
    if direction == "NE":
        count, rest = divmod(limit - start, step) if step else (0, 1)
        return count if rest == 0 and count >= 0 else None
    if step == 0 or (step > 0) != (direction in ("LT", "LE")):
        return None
    return max(-((start - limit) // step), 0)


def _test(condition: Computation, module: Module) -> tuple[int, str, int] | None:
    """(element of the state, direction, constant) that the condition compares."""
    assert condition.root is not None
    found = _inside(condition, condition.root, module)
    if found is None or found[0].opcode != "compare" or len(found[1]) != 2:
        return None
    direction = found[0].attributes.get("direction", "")
    left, right = found[1]
    if direction not in MIRRORED:
        return None
    if (place := _place(left)) is not None and (limit := _integer(right)) is not None:
        return place, direction, limit
    if (place := _place(right)) is not None and (limit := _integer(left)) is not None:
        return place, MIRRORED[direction], limit
    return None


def _step(body: Computation, place: int, module: Module) -> int | None:
    """By how much the body changes an element of the state; None: not by a constant."""
    root = body.root
    if root is None or root.opcode != "tuple" or place >= len(root.operands):
        return None
    changed = _source(body, root.operands[place])
    found = _inside(body, changed, module) if changed is not None else None
    if found is None or len(found[1]) != 2:
        return None
    operation, (left, right) = found
    if operation.opcode == "add" and _place(left) == place:
        return _integer(right)
    if operation.opcode == "add" and _place(right) == place:
        return _integer(left)
    if operation.opcode == "subtract" and _place(left) == place:
        by = _integer(right)
        return None if by is None else -by
    return None


def _inside(
    outer: Computation, one: Instruction, module: Module
) -> tuple[Instruction, list[Instruction | None]] | None:
    """An instruction, or that of a fusion of one, with its operands in the outer computation."""
    if one.opcode not in ("fusion", "call"):
        return one, [_source(outer, name) for name in one.operands]
    body = module.called(one, "calls" if one.opcode == "fusion" else "to_apply")
    assert body.root is not None
    operands: list[Instruction | None] = []
    for name in body.root.operands:
        found = _source(body, name)
        if found is not None and found.opcode == "parameter":
            number = number_of(found.literal)
            known = number is not None and number < len(one.operands)
            found = _source(outer, one.operands[number or 0]) if known else None
        operands.append(found)
    return body.root, operands


def _element(within: Computation, state: str, place: int) -> int | None:
    """The constant that an element of a loop's first state is."""
    found = _source(within, state)
    if found is None or found.opcode != "tuple" or place >= len(found.operands):
        return None
    return _integer(_source(within, found.operands[place]))


def _source(within: Computation, name: str) -> Instruction | None:
    """The instruction that a name stands for, behind copies."""
    one = within.named[name]
    for _ in range(HOPS_MAX):
        if one.opcode not in PASSED_ON or not one.operands:
            return one
        one = within.named[one.operands[0]]
    return None


def _place(one: Instruction | None) -> int | None:
    """The element of the state that an instruction gets from it."""
    if one is None or one.opcode != "get-tuple-element":
        return None
    return number_of(one.attributes.get("index", ""))


def _integer(one: Instruction | None) -> int | None:
    if one is None or one.opcode != "constant" or not _INTEGER.fullmatch(one.literal):
        return None
    return int(one.literal)
