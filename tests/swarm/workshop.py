"""Builds an extension module with little more than the fabric, unchanged or with a defect.

As in tests/schedules, all compilation units are built once, then those that a defect changes.
`python -m tests.swarm.workshop DIRECTORY` builds the unchanged module, to run a swarm on.
"""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from sysconfig import get_path

import pybind11

from tests.schedules.defects import ROOT, Workshop

JOBS = 2
# Modules of native/ that the fabric simulator needs.
ROOMS = ("bind", "core", "datapath", "engine", "files", "policy", "sim", "telemetry", "wire")
UNITS = (
    *("core/*.cc", "files/*.cc", "wire/*.cc", "policy/*.cc", "sim/fabric/*.cc"),
    *("telemetry/*.cc", "bind/crc32c.cc", "bind/fabric.cc", "bind/trace_records.cc"),
    "engine/policies/policy_choice.cc",
)
MODULE = "tests/swarm/module.cc"


class FabricWorkshop(Workshop):
    """Builds a copy of the sources; `policies` has the objects of the `fixed` policies."""

    product = "_native.so"

    def __init__(self, directory: Path, policies: Path, optimise: str = "-O1") -> None:
        self.directory = directory
        self.policies = policies
        self.optimise = optimise
        self.base = directory / "base"
        for room in ROOMS:
            shutil.copytree(ROOT / "native" / room, self.base / "native" / room)
        (self.base / MODULE).parent.mkdir(parents=True)
        shutil.copy(ROOT / MODULE, self.base / MODULE)
        native = self.base / "native"
        found = [file for pattern in UNITS for file in native.glob(pattern)]
        self.units = sorted(file.relative_to(self.base) for file in [*found, self.base / MODULE])

    def flags(self) -> list[str]:
        shared = ["-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden"]
        headers = [f"-isystem{pybind11.get_include()}", f"-isystem{get_path('include')}"]
        own = [self.optimise if flag == "-O1" else flag for flag in super().flags()]
        return [*own, *shared, *headers]

    def link(self, objects: list[Path], program: Path) -> Path:
        fixed = sorted(self.policies.glob("fixed_*.o"))
        self.call(*objects, *fixed, "-shared", "-ldl", "-pthread", "-o", program)
        return program

    def healthy(self) -> Path:
        """Builds the module from the unchanged sources."""
        # Compile the slowest units, the Python bindings, first.
        order = sorted(self.units, key=lambda unit: "bind" not in unit.parts)
        with ThreadPoolExecutor(JOBS) as pool:
            objects = list(pool.map(lambda unit: self.compile(unit, self.base), order))
        return self.link(objects, self.base / self.product)


def main() -> None:
    directory = Path(sys.argv[1])
    policies = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "build" / "release" / "policies"
    if not list(policies.glob("fixed_*.o")):
        sys.exit(f"{policies} has no fixed_*.o: make build compiles them")
    shutil.rmtree(directory / "base", ignore_errors=True)
    print(FabricWorkshop(directory, policies, "-O2").healthy())


if __name__ == "__main__":
    main()
