"""Counts the instructions of each call of a native function with callgrind.

Times are meaningless under valgrind, so nothing is timed here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from bench.lib.common import ROOT

INSTALL = "valgrind is not installed: apt-get install valgrind"


def count(program: str, function: str) -> list[int]:
    """Instructions of each call of a native function that a Python program makes, in order.

    `function` is qualified and without arguments: weft::bench::bench_rdma.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise click.ClickException(INSTALL)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            valgrind,
            "--tool=callgrind",
            f"--callgrind-out-file={folder}/out",
            f"--toggle-collect={function}(*",
            # Patterns with a namespace never match, so this pattern has none and matches the
            # function of the Python binding, too.
            f"--dump-after=*{function.rsplit(':', 1)[-1]}(*",
            *(sys.executable, "-c", program),
        ]
        clean = os.environ | {"PYTHONHASHSEED": "0"}
        done = subprocess.run(
            command, cwd=ROOT, env=clean, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise click.ClickException(f"callgrind: {done.stderr.strip().splitlines()[-1]}")
        dumps = sorted(Path(folder).glob("out.*"), key=lambda path: int(path.suffix[1:]))
        texts = [path.read_text() for path in dumps]
    return [
        int(found[1])
        for text in texts
        if f"--dump-after={function}(" in text
        and (found := re.search(r"^totals: (\d+)", text, re.MULTILINE))
    ]
