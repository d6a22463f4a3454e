"""The door by which a module from the workshop takes transport._native's place, in tests alone.

`WEFT_TEST_NATIVE=FILE python -m tests.swarm.door ARGUMENTS` is `weft ARGUMENTS` on that module;
processes that it starts come through here as well, as they import the main module first.
"""

import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location

VARIABLE = "WEFT_TEST_NATIVE"
NAME = "transport._native"


def take_place(file: str) -> None:
    """From now on transport._native is this file."""
    loader = ExtensionFileLoader(NAME, file)
    spec = spec_from_file_location(NAME, file, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[NAME] = module


if VARIABLE in os.environ:
    take_place(os.environ[VARIABLE])

if __name__ == "__main__":
    from transport.cli import main

    main()
