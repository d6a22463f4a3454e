"""Tests the dependency rules between modules, opening comments, file sizes and the top level.

It only reads source text, so it runs without an installation or a build:
python3 tests/test_walls.py.
"""

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STDLIB = set(sys.stdlib_module_names)
NATIVE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
FOREIGN_SUFFIXES = {".hpp", ".hh", ".hxx", ".cpp", ".cxx", ".c", ".inl", ".ipp"}
LINES_MAX = 600
FUNCTION_LINES_MAX = 50
NATIVE_FUNCTION_LINES_MAX = 60

TOP_LEVEL = {
    *("README.md", "setup.py", "transport", "native", "congestion", "tests", "bench", "examples"),
    *("pyproject.toml", "Makefile", "LICENSE", "docs", "CMakeLists.txt", "MANIFEST.in"),
}
# Names at the top level that tools create and git ignores.
BY_TOOLS = {"build", "dist", "weft.egg-info", "__pycache__", "compile_commands.json"}

# Packages that a module may import besides the standard library, by one or two names; the longest
# prefix wins.
PYTHON_ROOMS = {
    "congestion": {"congestion"},
    "congestion/api": {"congestion", "numpy"},
    "transport": {"transport", "congestion", "numpy"},
    "transport/cli": {"transport", "congestion", "numpy", "click", "rich"},
    "transport/compiler": {"transport", "congestion", "numpy", "numba", "llvmlite"},
    "transport/conformance": {"transport", "congestion", "numpy"},
    "transport/diagnose": {"transport", "numpy"},
    "transport/diagnose/live": {
        *("transport", "numpy", "prometheus_client", "pynvml", "opentelemetry"),
    },
    "transport/lab": {"transport", "pyroute2"},
    "transport/live": {"transport", "rich", "prometheus_client", "tornado"},
    "transport/ground": {"transport.ground"},
    "transport/lab/model": {"transport.ground"},
    "transport/estimate": {"transport", "numpy", "scipy"},
    "transport/pages": {"transport", "jinja2", "markupsafe"},
    "transport/plan": {"transport", "numpy"},
    "transport/host": {"transport", "pyverbs"},
    "transport/report": {"transport", "numpy"},
    "transport/sim": {"transport", "congestion", "numpy", "distributed", "google"},
    "transport/telemetry": {"transport", "numpy"},
    "transport/trace": {"transport", "numpy", "duckdb"},
    "bench": {
        *("bench", "transport", "congestion", "numpy", "scipy", "click", "rich", "torch", "cupy"),
    },
    "examples": {"examples", "transport", "congestion", "numpy", "click", "rich", "torch", "cupy"},
    "transport/deploy": {"transport", "ray", "torch"},
    "transport/examples": {"transport", "numpy", "click", "cupy"},
}
# Large or optional packages: imported only inside functions, so that importing weft stays fast.
LAZY = {
    *("numba", "llvmlite", "torch", "cupy", "matplotlib", "pyverbs", "pyroute2", "distributed"),
    "duckdb",
    "prometheus_client",
    "tornado",
    "pynvml",
    "opentelemetry",
    "jinja2",
    "ray",
}
# Packages that any module may import lazily; an optional extra of weft installs them.
OPTIONAL = {"matplotlib"}
# Modules that are pure functions of their inputs, and the standard library modules they may use.
PURE = {
    "congestion": {
        "__future__",
        "math",
        "typing",
        "collections",
        "dataclasses",
        "enum",
        "functools",
    },
    "congestion/api": {
        "__future__",
        "math",
        "typing",
        "collections",
        "dataclasses",
        "enum",
        "types",
    },
    "congestion/registry": {
        "__future__",
        "typing",
        "collections",
        "dataclasses",
        "importlib",
        "types",
    },
}
IMPURE = {
    "transport/conformance": {"datetime", "random", "secrets", "socket", "asyncio", "threading"},
    "transport/sim": {"time", "datetime", "random", "secrets", "socket", "asyncio", "threading"},
}

NATIVE_ROOMS = {
    "telemetry": {"telemetry"},
    "files": {"files"},
    "wire": {"wire"},
    "policy": {"policy", "wire", "files"},
    "core": {"core", "wire", "policy", "telemetry"},
    "datapath": {"datapath", "wire", "telemetry", "files"},
    "gpu": {"gpu", "core"},
    "engine": {"engine", "core", "wire", "policy", "datapath", "telemetry", "files"},
    "local": {"local", "engine", "core", "datapath", "telemetry"},
    "control": {
        *("control", "local", "engine", "core", "wire", "policy", "datapath", "telemetry", "files"),
    },
    "message": {
        *("message", "control", "local", "engine", "core"),
        *("wire", "datapath", "gpu", "telemetry", "files"),
    },
    "sim": {"sim", "core", "wire", "policy", "telemetry"},
    "plugin": {"plugin", "message", "engine", "files"},
    "bind": {
        *("bind", "message", "engine", "datapath", "gpu", "sim"),
        *("core", "wire", "policy", "telemetry"),
    },
}
# What only tests and benchmarks need, by folder: no room of native/ may include any of it.
MACHINERY = {
    "bench/native/loops": {
        *("bench/native/loops", "native/engine", "native/core", "native/datapath", "native/gpu"),
        "native/message",  # half round trips of connections
        "native/plugin",  # the profiler's interface, which a benchmark calls as NCCL does
        "native/wire",  # the checksums that a copy of payload computes
        "tests/native/verbs",
    },
    "bench/native/bind": {"bench/native/loops", "native/bind", "native/engine", "native/gpu"},
    "tests/native/verbs": {"tests/native/verbs", "native/datapath"},
    "tests/native/rig": {
        *("tests/native/rig", "native/core", "native/wire", "native/policy", "native/telemetry"),
    },
    "tests/native/bind": {"tests/native/rig", "native/bind"},
    "tests/softverbs/native": {
        *("tests/softverbs/native", "native/gpu", "native/datapath/verbs"),
    },
}
# Headers that every module may include: the status codes.
EVERYWHERE = {"native/core/status.h"}
CLOCKS = r"chrono|ctime|time\.h"
THREADS = r"thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|stop_token"
OUTSIDE = r".*/.*|unistd\.h|dlfcn\.h|fcntl\.h|errno\.h|cerrno|fstream|filesystem|iostream|csignal"
FOREIGN = r"cuda.*|infiniband/.*|pybind11/.*|nccl.*|Python\.h"
BANNED_INCLUDES = {
    "telemetry": f"{CLOCKS}|{THREADS}|{FOREIGN}|random",
    "files": FOREIGN,
    "wire": f"{CLOCKS}|{THREADS}|{OUTSIDE}|{FOREIGN}|random",
    "core": f"{CLOCKS}|{THREADS}|{OUTSIDE}|{FOREIGN}|random",
    "sim": f"{CLOCKS}|{OUTSIDE}|{FOREIGN}|random",
    "policy": FOREIGN,
    "datapath": FOREIGN,
    "gpu": r"sys/socket\.h|netinet/.*|pybind11/.*|nccl.*|Python\.h",
    "engine": r"pybind11/.*|nccl.*|Python\.h|cuda.*",
    "local": r"pybind11/.*|nccl.*|Python\.h|cuda.*",
    "control": r"pybind11/.*|nccl.*|Python\.h|cuda.*",
    "message": r"pybind11/.*|nccl.*|Python\.h",
    "plugin": r"pybind11/.*|nccl.*|Python\.h",
    "bind": r"nccl.*",
    "bench/native/loops": r"pybind11/.*|nccl.*|Python\.h",
    "bench/native/bind": r"nccl.*",
    "tests/native/verbs": r"pybind11/.*|nccl.*|Python\.h|cuda.*",
    "tests/native/rig": f"{CLOCKS}|{OUTSIDE}|{FOREIGN}|random",
    "tests/native/bind": r"nccl.*",
    "tests/softverbs/native": r"pybind11/.*|nccl.*|Python\.h|cuda.*",
}
_CLOCKS = r"clock_gettime|gettimeofday|getenv|s?rand(?=\()|std::chrono|std::mt19937"
SIMULATED = rf"\b({_CLOCKS}|std::random_device)\b"
TIMELESS = rf"\b({_CLOCKS}|std::thread)\b"
BANNED_WORDS = {
    "wire": TIMELESS,
    "core": TIMELESS,
    "sim": SIMULATED,
    "tests/native/rig": SIMULATED,
}

# Names that hold a measured time, rate or share. No test compares them with each other or with a
# figure (docs/CONTRIBUTING.md), because other work on the machine changes them.
MEASURED = re.compile(
    r"(?:_|^)(?:ns|us|ms|seconds|elapsed|took|shares?|ratios?|rates?|busbw|algbw)(?:_min|_max)?$"
    r"|_s$|^(?:ns|us|ms)_per_|_per_(?:byte|gbyte|segment)$"
    r"|^(?:time|monotonic|perf_counter)(?:_ns)?$"
)
# Waits for events here, and nowhere else.
WAITING = {"tests/waiting.py"}
# Programs for hosts with GPUs: a person runs them and reads what they measured.
BY_HAND = ("tests/device/",)
# Tests whose times are those of a simulator, of the two-endpoint rig, or of records that the test
# has written: the same at each run, whatever else the machine does.
VIRTUAL = (
    *("tests/compiler/", "tests/conformance/", "tests/core/", "tests/estimate/", "tests/golden/"),
    *("tests/policies/", "tests/replay/", "tests/schedules/", "tests/sim/", "tests/swarm/"),
    # Traces that the tests write themselves, or that the simulator writes.
    *("tests/trace/test_played_back.py", "tests/trace/test_sim_trace.py"),
    "tests/trace/test_store.py",
    *("tests/diagnose/test_gaps.py", "tests/diagnose/test_rules.py"),
    *("tests/diagnose/test_stragglers.py", "tests/diagnose/test_windows.py"),
    *("tests/diagnose/test_live_collector.py", "tests/diagnose/test_live_summary.py"),
)


def sources(suffixes: set[str], *rooms: str) -> Iterator[tuple[str, Path]]:
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in suffixes and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT).as_posix(), path


def longest_prefix(where: str, table: dict[str, set[str]]) -> set[str] | None:
    fits = [p for p in table if where == p + ".py" or where.startswith(p + "/")]
    return table[max(fits, key=len)] if fits else None


def imports(where: str, tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """The full name of every imported module, and whether a function imports it lazily."""
    package = where.removesuffix(".py").split("/")[:-1]
    inner = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.walk(node)
    }
    unseen = typing_only(tree)
    for node in ast.walk(tree):
        lazy = id(node) in inner or id(node) in unseen
        if isinstance(node, ast.Import):
            yield from ((alias.name, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((f"{module}.{alias.name}", lazy) for alias in node.names)


def python_breaches() -> Iterator[str]:
    for where, path in sources({".py", ".pyi"}, *{room.split("/")[0] for room in PYTHON_ROOMS}):
        allowed = longest_prefix(where, PYTHON_ROOMS) or set()
        for name, lazy in imports(where, ast.parse(path.read_text())):
            yield from (f"{where}: {text}" for text in judge(where, name, lazy, allowed))


def judge(where: str, name: str, lazy: bool, allowed: set[str]) -> Iterator[str]:
    """Yields a message for each rule that one import breaks."""
    top = name.split(".")[0]
    pure = longest_prefix(where, PURE)
    if top in STDLIB:
        if pure is not None and top not in pure:
            yield f"a pure module may not import {top}"
        if top in (longest_prefix(where, IMPURE) or set()):
            yield f"may not import {top}"
    elif not allowed & {top, ".".join(name.split(".")[:2])} and not (top in OPTIONAL and lazy):
        yield f"may not import {top}"
    if top in LAZY and not lazy:
        yield f"imports {top} at module level; import it where it is used"
    if "_native" in name.split(".") and where not in {
        "transport/native.py",
        "transport/_native.pyi",
        "transport/_native_counters.pyi",
        "transport/_native_fabric.pyi",
        "transport/_native_replay.pyi",
    }:
        yield "only transport/native.py may import _native"
    public_only = where.startswith(("bench/", "examples/")) and top in {"transport", "congestion"}
    if public_only and any(re.match(r"_(?!_)", part) for part in name.split(".")):
        yield f"may not reach into the private {name}"


def typing_only(tree: ast.Module) -> set[int]:
    """The ids of all nodes that only type checkers see."""
    return {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.walk(node)
    }


def import_graph() -> dict[str, set[str]]:
    """File of transport/ -> the files of it that it imports, lazily or not."""
    files = {where: ast.parse(path.read_text()) for where, path in sources({".py"}, "transport")}
    modules = {
        where.removesuffix(".py").removesuffix("/__init__").replace("/", "."): where
        for where in files
    }
    graph: dict[str, set[str]] = {}
    for where, tree in files.items():
        unseen = typing_only(tree)
        tree.body = [node for node in tree.body if id(node) not in unseen]
        names = {name for name, _ in imports(where, tree)}
        names |= {name.rpartition(".")[0] for name in names}
        # A package's own modules name it when they import each other.
        packages = {f"{folder}/__init__.py" for folder in Path(where).parents}
        graph[where] = {modules[name] for name in names if name in modules} - {where} - packages
    return graph


def circle_breaches(files: dict[str, set[str]]) -> Iterator[str]:
    """Yields a circle of files that import each other, and one of folders."""
    folders: dict[str, set[str]] = {}
    for where, imported in files.items():
        # What starts the command line stands above all folders, in the folder below all.
        if where != "transport/__main__.py":
            own = where.rpartition("/")[0]
            folders.setdefault(own, set()).update(
                {one.rpartition("/")[0] for one in imported} - {own}
            )
    for kind, graph in (("files", files), ("folders", folders)):
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            yield f"a circle of {kind}: {' -> '.join(error.args[1])}"


def native_breaches() -> Iterator[str]:
    for where, path in sources(NATIVE_SUFFIXES, "native"):
        room = where.split("/")[1]
        if room not in NATIVE_ROOMS:
            yield f"{where}: {room} is not a known module of native/"
            continue
        allowed = {f"native/{one}" for one in NATIVE_ROOMS[room]}
        words = BANNED_WORDS.get(room, r"(?!)")
        yield from include_breaches(where, path, allowed, BANNED_INCLUDES[room], words)
    for where, _ in sources(FOREIGN_SUFFIXES, "native", *MACHINERY):
        yield f"{where}: native files end in .h, .cc, .cu or .cuh"
    for folder, allowed in MACHINERY.items():
        for where, path in sources(NATIVE_SUFFIXES, folder):
            words = BANNED_WORDS.get(folder, r"(?!)")
            yield from include_breaches(where, path, allowed, BANNED_INCLUDES[folder], words)


def include_breaches(
    where: str, path: Path, allowed: set[str], banned: str, words: str
) -> Iterator[str]:
    """The lines of a native file that include, or use, what its folder may not."""
    include = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = include.match(line)
        if match is None:
            if re.search(words, line.split("//")[0]):
                yield f"{where}:{number}: a pure module may not use {line.strip()}"
            continue
        quote, name = match.groups()
        if quote == '"' and name.split("/")[0] not in {"native", "bench", "tests"}:
            yield f"{where}:{number}: includes {name} by a path that does not start at the root"
        elif quote == '"' and name not in EVERYWHERE:
            if not any(name.startswith(f"{folder}/") for folder in allowed):
                yield f"{where}:{number}: may not include {name}"
        elif quote == "<" and name.split("/")[0] in {"native", "bench", "tests"}:
            yield f"{where}:{number}: includes {name} in angle brackets: write quotes"
        elif quote == "<" and re.fullmatch(banned, name):
            yield f"{where}:{number}: may not include <{name}>"


def opening(path: Path) -> list[str]:
    """The lines of the comment or docstring at the start of a file."""
    text = path.read_text()
    if path.suffix in {".py", ".pyi"}:
        docstring = ast.get_docstring(ast.parse(text)) or ""
        return [line for line in docstring.splitlines() if line.strip()]
    lines = []
    for line in text.splitlines():
        if not line.startswith("// "):
            break
        lines.append(line)
    return lines


def opening_breaches() -> Iterator[str]:
    rooms = ("native", "transport", "congestion", "bench", "examples")
    for where, path in sources({".py", *NATIVE_SUFFIXES}, *rooms):
        if not opening(path):
            yield f"{where}: begin with a sentence that says what the file is for"
    for where, path in sources({".py", *NATIVE_SUFFIXES}, "tests"):
        if not opening(path):
            yield f"{where}: begin with a line that says what is tested"


NOT_A_FUNCTION = re.compile(
    r"\s*(namespace|struct|class|enum|union|extern|template|if|for|while|switch|else|do|case"
    r"|constexpr|static const|const|inline constexpr|}|#|//)\b"
)


def native_functions(lines: list[str]) -> Iterator[tuple[int, int]]:
    """(first line, number of lines) of each C++ function, found by clang-format's indentation."""
    open_at: list[tuple[str, int]] = []
    for number, line in enumerate(lines, 1):
        begin = re.match(r"( {0,4})(?! *:)\S.*\{$", line)
        named = begin is not None and "(" in line and not NOT_A_FUNCTION.match(line)
        if begin is not None and named and (not open_at or begin[1] > open_at[-1][0]):
            open_at.append((begin[1], number))
        end = re.match(r"( {0,4})\}", line)
        if end is not None and open_at and open_at[-1][0] == end[1]:
            first = open_at.pop()[1]
            yield first, number - first + 1


def size_breaches() -> Iterator[str]:
    rooms = ("native/", *MACHINERY)
    everything = ("native", "transport", "congestion", "bench", "examples", "tests")
    for where, path in sources({".py", ".pyi", *NATIVE_SUFFIXES}, *everything):
        count = len(path.read_text().splitlines())
        if count > LINES_MAX:
            yield f"{where}: {count} lines, {LINES_MAX} at most"
        if path.suffix in NATIVE_SUFFIXES:
            for number, length in native_functions(path.read_text().splitlines()):
                if where.startswith(rooms) and length > NATIVE_FUNCTION_LINES_MAX:
                    most = NATIVE_FUNCTION_LINES_MAX
                    yield f"{where}:{number}: a function of {length} lines, {most} at most"
        if path.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    yield f"{where}: {node.name} has {length} lines, {FUNCTION_LINES_MAX} at most"


def top_level_breaches() -> Iterator[str]:
    for path in sorted(ROOT.iterdir()):
        if not path.name.startswith(".") and path.name not in TOP_LEVEL | BY_TOOLS:
            yield f"{path.name}: not a known name at the top level"


def names_in(node: ast.AST) -> Iterator[str]:
    """The names, attributes and keys that an expression reads."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr
        elif isinstance(child, ast.Subscript) and isinstance(child.slice, ast.Constant):
            yield str(child.slice.value)


def comparisons(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The pairs of neighbours that an expression compares by size."""
    for child in ast.walk(node):
        if isinstance(child, ast.Compare):
            operands = [child.left, *child.comparators]
            for left, operator, right in zip(operands, child.ops, operands[1:], strict=False):
                if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                    yield left, right


def measured_breaches(text: str) -> Iterator[tuple[int, str]]:
    """Asserts, in a file of tests, that compare what names with units of measurement hold."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Assert):
            continue
        for pair in comparisons(node.test):
            # Anything measured may be compared with 0: a value is there, or it is not negative.
            if any(isinstance(one, ast.Constant) and one.value == 0 for one in pair):
                continue
            if found := {one for side in pair for one in names_in(side) if MEASURED.search(one)}:
                names = ", ".join(sorted(found))
                yield node.lineno, f"compares what is measured ({names}): docs/CONTRIBUTING.md"
                break


def sleep_breaches(text: str) -> Iterator[tuple[int, str]]:
    """Sleeps without a comment on their line that says why no event is waited for."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            sleeps = node.func.attr == "sleep" and isinstance(owner, ast.Name)
            sleeps |= ast.unparse(node).startswith(("threading.Event().wait(", "Event().wait("))
            for_nothing = any(isinstance(one, ast.Constant) and one.value == 0 for one in node.args)
            if sleeps and not for_nothing and "#" not in lines[node.lineno - 1]:
                yield node.lineno, "sleeps without a reason: wait for an event (tests/waiting.py)"


def clock_breaches() -> Iterator[str]:
    for where, path in sources({".py"}, "tests"):
        if where in WAITING or where.startswith(BY_HAND):
            continue
        text = path.read_text()
        found = list(sleep_breaches(text))
        if not where.startswith(VIRTUAL):
            found += measured_breaches(text)
        yield from (f"{where}:{number}: {said}" for number, said in sorted(found))


def test_walls__python_imports() -> None:
    assert list(python_breaches()) == []


def test_walls__native_includes() -> None:
    assert list(native_breaches()) == []


def test_walls__first_lines() -> None:
    assert list(opening_breaches()) == []


def test_walls__no_circle() -> None:
    assert list(circle_breaches(import_graph())) == []


def test_walls__a_circle_is_seen() -> None:
    within = {
        "transport/sim/a.py": {"transport/sim/b.py"},
        "transport/sim/b.py": {"transport/sim/a.py"},
    }
    assert list(circle_breaches(within)) == [
        "a circle of files: transport/sim/a.py -> transport/sim/b.py -> transport/sim/a.py"
    ]
    between = {"a/x.py": {"b/x.py"}, "b/y.py": {"a/y.py"}}
    assert list(circle_breaches(between)) == ["a circle of folders: a -> b -> a"]


def test_walls__sizes() -> None:
    assert list(size_breaches()) == []


def test_walls__top_level() -> None:
    assert list(top_level_breaches()) == []


def test_walls__no_test_judges_by_the_clock() -> None:
    assert list(clock_breaches()) == []


def test_walls__a_comparison_of_what_was_measured_is_seen() -> None:
    for text in (
        "assert row['ns_per_segment'] > row['fake_ns'] > 0",
        "assert time.monotonic() - begin < 1.0",
        "assert 1e9 < good['error_ns'] < 20e9",
        "assert took_s < END_S",
        "assert all(one.capacity_share >= 0.4 for one in rows)",
        "assert min(shares) > 0.05, shares",
        "assert found.busbw > 3, 'slow'",
        "assert a and (found['gbytes_per_s'] >= 1)",
    ):
        assert len(list(measured_breaches(text))) == 1, text
    for text in (
        "assert row['fct_ns'] > 0",
        "assert {'cpu_share', 'spread'} <= set(row)",
        "assert in_order(fields['posted_ns'], fields['last_ns'])",
        "assert row['error_share'] == pytest.approx(row['a_ns'] / row['b_ns'] - 1)",
        "assert row['segments'] > 20",
        "if time.monotonic() > end: raise AssertionError",
        "assert second.bytes_sent >= 4 * size",
    ):
        assert list(measured_breaches(text)) == [], text


def test_walls__a_sleep_without_a_reason_is_seen() -> None:
    in_a_loop = "async def f():\n    await asyncio.sleep(PAUSE_S)"
    for text in ("time.sleep(1)", "threading.Event().wait(0.1)", in_a_loop):
        assert len(list(sleep_breaches(text))) == 1, text
    for text in ("time.sleep(1)  # time in which nothing may arrive", "await_ = asyncio.sleep(0)"):
        assert list(sleep_breaches(text)) == [], text


def test_walls__a_breach_is_seen() -> None:
    tree = ast.parse("from ..native import x\nfrom . import _native\ndef f():\n    import numba\n")
    found = dict(imports("transport/sim/a.py", tree))
    assert found == {"transport.native.x": False, "transport.sim._native": False, "numba": True}
    assert list(judge("transport/sim/a.py", "time", False, {"transport"}))
    assert list(judge("transport/a.py", "transport._native", False, {"transport"}))
    assert list(judge("congestion/window/a.py", "os", False, {"congestion"}))
    assert list(judge("transport/ground/a.py", "transport.lab.model", False, {"transport.ground"}))
    assert list(judge("bench/a.py", "transport._private", False, {"transport"}))


if __name__ == "__main__":
    found = [
        *python_breaches(),
        *circle_breaches(import_graph()),
        *native_breaches(),
        *opening_breaches(),
        *size_breaches(),
        *top_level_breaches(),
        *clock_breaches(),
    ]
    test_walls__a_breach_is_seen()
    test_walls__a_comparison_of_what_was_measured_is_seen()
    test_walls__a_sleep_without_a_reason_is_seen()
    print(*found, sep="\n", end="\n" if found else "")
    print(f"walls: {len(found)} breaches")
    sys.exit(bool(found))
