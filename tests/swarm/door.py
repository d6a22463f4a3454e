"""Replaces transport._native by another extension module, for tests only.

`WEFT_TEST_NATIVE=FILE python -m tests.swarm.door ARGUMENTS` runs `weft ARGUMENTS` on that module,
and the swarm if the first argument is `swarm`.
Its worker processes use the module too, because they import the main module first.
"""

import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location

VARIABLE = "WEFT_TEST_NATIVE"
NAME = "transport._native"


def take_place(file: str) -> None:
    """Loads the given file as the module transport._native."""
    loader = ExtensionFileLoader(NAME, file)
    spec = spec_from_file_location(NAME, file, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[NAME] = module


if VARIABLE in os.environ:
    take_place(os.environ[VARIABLE])

if __name__ == "__main__":
    if sys.argv[1:2] == ["swarm"]:
        from tests.swarm.command import main as swarm

        swarm(sys.argv[2:])
    else:
        from transport.cli import main

        main()
