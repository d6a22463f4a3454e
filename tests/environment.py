"""The environment of the programs that tests start."""

import os

# Messages between processes of this host take the network, which most tests are about.
OVER_THE_NETWORK = {"WEFT_LOCAL": "off"}


def clean_environment(*prefixes: str) -> dict[str, str]:
    """This process's environment without its settings of weft, but with those of all tests.

    prefixes: of further variables that are left out, as in "NCCL_".
    """
    left_out = ("WEFT_", *prefixes)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return kept | OVER_THE_NETWORK
