"""Tests that a command without optional packages names all extras that it needs, at once."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import click
import pytest

from transport.cli import invoke, weft
from transport.cli.packages import compiling
from transport.ground.extras import MODULES, Extra, absent, extras_for

POLICY = str(Path(__file__).resolve().parents[2] / "examples" / "my_policy.py")
NAMED = re.compile(r"pip install 'weft\[([\w,]+)\]'")
# Options whose work an optional package does.
OPTIONS = {"--html", "--png", "--plot", "--gantt", "--curves", "--dask", "--otlp", "--listen"}
# Arguments of weft -> the extras that it names. TRACE is a folder with a trace.
NEEDS = {
    "report TRACE -o OUT.html": "trace",
    "report --live TRACE --listen 127.0.0.1:0": "trace,metrics",
    "trace info TRACE": "trace",
    "trace profile TRACE": "trace",
    "trace query TRACE events": "trace",
    "trace matrix TRACE": "trace",
    "trace matrix TRACE --html OUT.html": "trace",
    "trace matrix TRACE --png OUT.png": "plots,trace",
    "trace matrix TRACE --png OUT.png --html OUT.html": "plots,trace",
    "diagnose TRACE": "trace",
    "diagnose --live TRACE --count 1": "trace",
    "diagnose --live TRACE --count 1 --listen 127.0.0.1:0": "trace,metrics",
    "diagnose --live TRACE --count 1 --otlp http://127.0.0.1:9": "trace,otlp",
    "diagnose --live TRACE --count 1 --otlp http://127.0.0.1:9 --listen 127.0.0.1:0": (
        "trace,metrics,otlp"
    ),
    "estimate overlap TRACE": "trace",
    "estimate calibrate TRACE -o OUT.toml": "estimate",
    "estimate compare '64 x h100 ethernet-400' --html OUT.html": "plots",
    "estimate compare '64 x h100 ethernet-400' --plot OUT.svg": "plots",
    "estimate tolerate llama2-7b --plot OUT.svg": "plots",
    "estimate train llama2-7b --data 64 --html OUT.html": "plots",
    "estimate train llama2-7b --data 64 --gantt OUT.svg": "plots",
    "estimate train llama2-7b --data 64 --curves OUT.svg": "plots",
    "sim first --no-compare --limit 1us --plot OUT.svg": "plots",
    "sim first --no-compare --limit 1us --html OUT.html": "plots",
    "sim first --no-compare --limit 1us --csv OUT.parquet": "trace",
    "sim first --no-compare --limit 1us --workload TRACE --html OUT.html": "trace",
    f"sim first --no-compare --limit 1us --window {POLICY} --plot OUT.svg": "policies,plots",
    f"sim first --no-compare --limit 1us --policy {POLICY} --plot OUT.svg": "policies,plots",
    "sim first --dask tcp://127.0.0.1:9 --plot OUT.svg --html OUT.html": "plots,sweep",
    f"policy try {POLICY} --duration-ms 1 --plot OUT.svg": "policies,plots",
    f"policy coexist {POLICY} swift --stagger-ms 0 --duration-ms 1 --plot OUT.svg": (
        "policies,plots"
    ),
    f"policy replay {POLICY} --policy swift --plot OUT.svg": "policies,plots",
    "metrics --once": "metrics",
    "metrics --listen 127.0.0.1:0": "metrics",
}


def hide(monkeypatch: pytest.MonkeyPatch, modules: set[str]) -> None:
    """Makes the modules look as if they were not installed."""
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)


def words(text: str, trace: Path, folder: Path) -> list[str]:
    return shlex.split(text.replace("TRACE", str(trace)).replace("OUT", str(folder / "out")))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the trace of a small simulated job."""
    folder = tmp_path_factory.mktemp("job") / "t"
    given = ["sim", "all_reduce_ring_64", "--limit", "20us", "--trace", str(folder)]
    invoke(given)  # the job does not end within the limit, and its trace is written
    assert any(folder.iterdir())
    return folder


Tried = Callable[[str, set[str]], tuple[int, str]]
OPTIONAL = {module for modules in MODULES.values() for module in modules}


@pytest.fixture
def tried(
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Tried:
    """Runs a command line without some modules; its status, and what it printed."""

    def run(given: str, missing: set[str]) -> tuple[int, str]:
        hide(monkeypatch, missing)
        status = invoke(words(given, trace, tmp_path))
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


# The others of these serve until a signal, or need a cluster.
ENDING = [
    one
    for one in NEEDS
    if ("," in NEEDS[one] or "html" in one) and "--live" not in one and "--dask" not in one
]


@pytest.mark.parametrize("given", NEEDS)
def test_packages__one_message_names_all_extras(given: str, tried: Tried) -> None:
    status, said = tried(given, OPTIONAL)
    assert status == (2 if given.startswith("diagnose") else 1)
    assert NAMED.findall(said) == [NEEDS[given]], said


@pytest.mark.parametrize("given", ENDING)
def test_packages__what_the_message_names_is_enough(given: str, tried: Tried) -> None:
    brought = {module for one in NEEDS[given].split(",") for module in MODULES[one]}  # type: ignore[index]
    if absent(brought - {"ziglang"}):
        pytest.skip("the packages are not installed here")
    assert not NAMED.search(said := tried(given, OPTIONAL - brought)[1]), said


def options(command: click.Command, path: str = "") -> Iterator[tuple[str, str]]:
    """Each command below this one, with each option that OPTIONS names."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from options(found, f"{path} {name}".strip())
        return
    for one in command.params:
        yield from ((path, opt) for opt in one.opts if opt in OPTIONS)


def test_packages__the_table_above_has_all_commands_with_such_options() -> None:
    for path, option in options(weft):
        there = [one for one in NEEDS if one.startswith(f"{path} ") and option in one]
        assert there, f"weft {path} {option}: which extras does it need?"


def test_extras_for__chooses_the_fewest_packages() -> None:
    assert extras_for([]) == ()
    assert extras_for(["duckdb", "jinja2"]) == ("trace",)
    assert extras_for(["jinja2", "duckdb", "matplotlib", "scipy"]) == ("estimate",)
    assert set(MODULES) == {*get_args(Extra)}
    with pytest.raises(KeyError, match="no extra brings one of sqlite4"):
        extras_for(["sqlite4"])


def test_compiling__only_sources_are_compiled() -> None:
    assert compiling(["swift", None, "window=reps:x=1", "path=a.so"]) == ()
    assert compiling([None, "window=mine.py:factor=0.5"]) == ("numba",)
    assert compiling(["mine.py"]) == ("numba",)
