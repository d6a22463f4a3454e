"""Compiles the shipped policies and writes the C header of their records, for the build.

Users compile policies with `weft policy compile`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from congestion.header import header_text
from congestion.registry import shipped
from transport.compiler import PolicyError, compile_object, emit
from transport.compiler.linked import write_linked
from transport.ground import created


def write_all(out: Path, cpu: str) -> None:
    """Writes each shipped policy as OUT/<family>_<name>.so, and object files for static linking.

    The `fixed` policies are OUT/fixed_<family>.o; all others together are OUT/linked.o.
    """
    cpu = cpu or emit.baseline()
    others = []
    for entry in shipped():
        family, name = entry.policy.family.name, entry.policy.name
        hooks = emit.lowered(entry.policy)
        emit.write_library(entry.policy, out / f"{family}_{name}.so", cpu, hooks)
        if name == "fixed":
            compile_object(entry.policy, out / f"fixed_{family}.o", cpu=cpu)
        else:
            others.append((entry.policy, hooks))
    write_linked(others, out / "linked.o", cpu)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m transport.compiler")
    parser.add_argument("--all", action="store_true", help="compile the shipped policies")
    parser.add_argument("--out", type=Path, default=Path("."), help="the folder for --all")
    parser.add_argument("--cpu", default="", help="the CPU baseline; default: this machine's")
    parser.add_argument("--header", type=Path, help="write the C header of the records")
    given = parser.parse_args(arguments)
    if not given.all and given.header is None:
        parser.error("give --all or --header FILE")
    try:
        if given.header is not None:
            created.write_output(given.header, header_text())
        if given.all:
            write_all(given.out, given.cpu)
    except PolicyError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
