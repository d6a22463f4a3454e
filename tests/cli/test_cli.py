"""Tests the command line: exit statuses, one-line errors, JSON, `weft run`."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S
from transport import cli, native, telemetry
from transport.cli import docs, run
from transport.endpoint import knobs

ROOT = Path(__file__).resolve().parents[2]
COUNTERS_PAGE = ROOT / "docs" / "COUNTERS.md"
KNOBS_PAGE = ROOT / "docs" / "KNOBS.md"


def built() -> bool:
    try:
        native.load()
    except native.NativeMissingError:
        return False
    return True


needs_native = pytest.mark.skipif(not built(), reason="the native extension is not built")
needs_plugin = pytest.mark.skipif(not native.PLUGIN_PATH.exists(), reason="the plugin is not built")


def weft(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from transport.cli import main; main()", *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_")} | variables
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("arguments", [["nope"], ["--nope"], ["knobs", "--nope"], ["run"]])
def test_cli__wrong_usage_is_status_2_and_one_line(arguments: list[str]) -> None:
    done = weft(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("weft: ")
    assert done.stderr.count("\n") == 1


def test_cli__a_misspelt_command_is_told_its_name() -> None:
    for words, meant in ((["polici", "list"], "policy"), (["trace", "matix"], "matrix")):
        done = weft(*words)
        assert (done.returncode, meant in done.stderr) == (2, True), done.stderr


def test_cli__help_lists_every_command() -> None:
    done = weft("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("doctor", "knobs", "run"))


def test_cli__importing_the_package_loads_neither_extension_nor_numba() -> None:
    script = (
        "import sys, transport, transport.cli\n"
        "print({'numba', 'transport._native'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_cli__result_becomes_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.weft, "main", lambda **_: 1)
    assert cli.invoke([]) == 1
    monkeypatch.setattr(cli.weft, "main", lambda **_: None)
    assert cli.invoke([]) == 0


def test_doctor__reports_every_subject_as_json() -> None:
    done = weft("doctor", "--json", "-")
    findings = json.loads(done.stdout)
    assert {f["subject"] for f in findings} >= {"plugin", "UDP GSO/GRO", "NCCL", "CUDA", "knobs"}
    assert done.returncode == int(any(f["state"] == "BROKEN" for f in findings))
    assert all(f["remedy"] for f in findings if f["state"] != "ok")


def test_run__names_the_plugin_and_keeps_the_rest() -> None:
    chosen = run.environment({"NCCL_ALGO": "Ring", "NCCL_NET": "Socket"}, net_debug=False)
    assert chosen["NCCL_NET_PLUGIN"] == str(native.PLUGIN_PATH)
    assert Path(chosen["NCCL_NET_PLUGIN"]).is_absolute()
    assert chosen["NCCL_NET"] == "weft"
    assert chosen["NCCL_ALGO"] == "Ring"
    assert "NCCL_DEBUG" not in chosen
    assert chosen["NCCL_NET_PLUGIN_REF_COUNT"] == "1"
    kept = run.environment({"NCCL_NET_PLUGIN_REF_COUNT": "0"}, net_debug=False)
    assert kept["NCCL_NET_PLUGIN_REF_COUNT"] == "0"
    assert run.environment({}, net_debug=True)["NCCL_DEBUG_SUBSYS"] == "INIT,NET"
    assert "NCCL_PROFILER_PLUGIN" not in chosen
    traced = run.environment({"WEFT_TRACE": "/traces"}, net_debug=False)
    assert traced["NCCL_PROFILER_PLUGIN"] == traced["NCCL_NET_PLUGIN"]
    other = {"WEFT_TRACE": "/traces", "NCCL_PROFILER_PLUGIN": "other.so"}
    both = run.environment(other, net_debug=False)
    assert both["NCCL_PROFILER_PLUGIN"] == traced["NCCL_PROFILER_PLUGIN"]
    assert both["WEFT_PROFILER_CHAIN"] == "other.so"
    none = run.environment(other | {"NCCL_PROFILER_PLUGIN": "none"}, net_debug=False)
    assert "WEFT_PROFILER_CHAIN" not in none


@needs_native
@needs_plugin
def test_run__becomes_the_command() -> None:
    done = weft("run", "--", "sh", "-c", "echo $NCCL_NET $WEFT_PATHS; exit 7", WEFT_PATHS="4")
    assert (done.returncode, done.stdout, done.stderr) == (7, "weft 4\n", "")


@pytest.mark.parametrize("command", [["run"], ["trace", "record"], ["lab", "exec"]])
def test_commands_that_run_others__know_their_own_options(command: list[str]) -> None:
    done = weft(*command, "--nett", "--hel")
    assert done.returncode == 2
    assert done.stderr.startswith("weft: no such option: --nett")
    assert done.stderr.count("\n") == 1


def test_option__a_misspelt_one_is_told_its_name() -> None:
    assert "no such option: --nett; did you mean --net-debug?" in weft("run", "--nett", "x").stderr
    assert "no such option: --zzz (see weft run --help)" in weft("run", "--zzz", "x").stderr


@needs_native
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["doctor", "--sreve"], "did you mean --serve?"),
        (["doctor", "-s"], "did you mean --serve?"),
        (["doctor", "-p"], "did you mean --port or --peer?"),
        (["doctor", "peer", "host-b"], "(peer host-b); did you mean --peer?"),
        (["doctor", "host-b"], "unexpected extra argument (host-b) (see"),
        (["doctor", "--json"], "FILE, or - for stdout"),
        (["knobs", "--jsn", "-"], "did you mean --json?"),
        (["knobs", "--markdwon"], "did you mean --markdown?"),
        (["knobs", "pahts"], "did you mean WEFT_PATHS?"),
    ],
)
def test_option__what_is_refused_is_told_the_nearest(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.invoke(words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert says in said.err


def test_interrupted__while_modules_are_imported_is_quiet(tmp_path: Path) -> None:
    """A click of our own stands for Ctrl-C in the first moments."""
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-m", "transport", "knobs"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_interrupted__while_the_extension_starts_is_no_missing_extension(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """pybind11 reports any exception of a module's start as an ImportError with that cause."""

    def starts(_: str) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr(native, "import_module", starts)
    native.load.cache_clear()
    try:
        with pytest.raises(KeyboardInterrupt):
            native.load()
    finally:
        native.load.cache_clear()


@needs_native
@needs_plugin
def test_run__ends_as_a_shell_does_if_the_command_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    for command, status in (("no-such-cmd", 127), (str(tmp_path / "text"), 126)):
        done = weft("run", "--", command)
        assert (done.returncode, done.stdout) == (status, "")
        assert done.stderr.startswith(f"weft: {command}: ")
        assert done.stderr.count("\n") == 1


@needs_native
@needs_plugin
def test_run__says_which_of_the_users_variables_it_replaces() -> None:
    done = weft("run", "--", "true", NCCL_NET="Socket", NCCL_NET_PLUGIN="ofi", NCCL_DEBUG="TRACE")
    assert done.returncode == 0
    assert "NCCL_NET=Socket is set; NCCL_NET=weft for this command" in done.stderr
    assert "NCCL_NET_PLUGIN=ofi is set" in done.stderr
    assert done.stderr.count("\n") == 2
    show = ["run", "--net-debug", "--", "sh", "-c", "echo $NCCL_DEBUG"]
    assert weft(*show, NCCL_DEBUG="TRACE").stdout == "TRACE\n"
    raised = weft(*show, NCCL_DEBUG="WARN")
    assert (raised.stdout, "NCCL_DEBUG=WARN is set" in raised.stderr) == ("INFO\n", True)


@needs_native
@needs_plugin
@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("WEFT_TRACE", "/none/traces", "there is no folder /none"),
        ("WEFT_TRACE", "/proc/x", "no file can be created in /proc"),
        ("WEFT_TRACE", "/proc", "no file can be created in /proc"),
        ("WEFT_RECORD_FILE", "/proc/x.weftrec", "no file can be created in /proc"),
        ("WEFT_POLICY_DIRECTORY", "/none", "there is no such folder"),
        ("WEFT_WEIGHTS", "/tmp/weights", "needs WEFT_PATH_POLICY=weighted"),
        ("WEFT_PORT_BASE", "65535", "32 paths (WEFT_PATHS) of 1 engine need 32"),
        ("WEFT_RDMA_DEVICES", "mlx5_0", "needs WEFT_DATAPATH=verbs or auto"),
        ("WEFT_INTERFACES", "lo,lo", "names lo twice"),
        ("WEFT_INTERFACES", ",", "names no interface"),
        ("WEFT_PATH", "8", "did you mean WEFT_PATHS?"),
    ],
)
def test_run__refuses_what_no_rank_could_use(variable: str, value: str, says: str) -> None:
    done = weft("run", "--", "true", **{variable: value})
    assert (done.returncode, says in done.stderr, done.stderr.count("\n")) == (2, True, 1), done


@needs_native
@needs_plugin
def test_run__reads_values_as_people_write_them() -> None:
    given = {"WEFT_LOG_LEVEL": "INFO", "WEFT_DATAPATH": "UDP", "WEFT_PATHS": "", "WEFT_FAMILY": ""}
    done = weft("run", "--", "true", **given)
    assert (done.returncode, done.stderr) == (0, "")


@needs_native
@needs_plugin
def test_run__itself_writes_no_trace(tmp_path: Path) -> None:
    done = weft("run", "--", "true", WEFT_TRACE=str(tmp_path / "t"))
    assert done.returncode == 0
    assert not (tmp_path / "t").exists()


def test_run__a_policy_that_is_not_there_is_wrong_usage() -> None:
    for policy in ("nope.py", "nope.so", "nope", "path/reps"):
        done = weft("run", "--", "true", WEFT_WINDOW_POLICY=policy)
        assert (done.returncode, policy in done.stderr) == (2, True), done.stderr


@needs_native
@needs_plugin
def test_run__a_policy_that_cannot_be_loaded_has_failed(tmp_path: Path) -> None:
    whole = (native.POLICY_DIRECTORY / "window_swift.so").read_bytes()
    (tmp_path / "cut.so").write_bytes(whole[:3000])
    (tmp_path / "text.so").write_text("hello")
    for name, says in (("cut.so", "damaged or cut short"), ("text.so", "not a compiled policy")):
        done = weft("run", "--", "true", WEFT_WINDOW_POLICY=str(tmp_path / name))
        assert (done.returncode, says in done.stderr) == (1, True), done.stderr


@needs_native
@needs_plugin
def test_run__refuses_rules_that_no_rank_can_read(tmp_path: Path) -> None:
    rules = tmp_path / "tune.txt"
    for text, says in ((None, "cannot read"), ("hello", "no file of weft estimate tune")):
        if text is not None:
            rules.write_text(text)
        done = weft("run", "--", "true", WEFT_TUNE=str(rules))
        assert (done.returncode, says in done.stderr) == (2, True), done.stderr
    rules.write_text("weft_tune 1\n")
    assert weft("run", "--", "true", WEFT_TUNE=str(rules)).returncode == 0


@needs_native
@needs_plugin
def test_run__refuses_a_misspelt_knob() -> None:
    done = weft("run", "--", "true", WEFT_PTHS="4")
    assert done.returncode == 2
    assert "did you mean WEFT_PATHS?" in done.stderr


@needs_native
def test_knobs__json_carries_values_in_force() -> None:
    done = weft("knobs", "--json", "-", WEFT_PATHS="3")
    rows = {row["variable"]: row for row in json.loads(done.stdout)}
    assert rows["WEFT_PATHS"]["value"] == "3"
    assert rows["WEFT_PATHS"]["default"] == "0"
    assert {row["set_by"] for row in rows.values()} == {
        "operator",
        "researcher",
        "measurer",
        "tests",
    }
    assert [key["name"] for key in rows["WEFT_RTO"]["keys"]] == ["min", "max"]


@needs_native
@pytest.mark.parametrize("columns", [80, 120])
def test_knobs__fit_the_terminal(columns: int) -> None:
    given = {"WEFT_PATHS": "3", "WEFT_FAULT": "loss=0.01", "COLUMNS": str(columns)}
    lines = weft("knobs", **given).stdout.splitlines()
    assert max(map(len, lines)) <= columns
    fields = [line.split() for line in lines]
    assert ["WEFT_PATHS", "3", "*", "0", "or", "1..256", "count", "operator"] in fields
    assert ["WEFT_FAULT", "tests"] in fields
    assert ["loss", "0.01", "*", "0..1", "probability"] in fields
    assert {row.variable for row in knobs.table()} <= {words[0] for words in fields}


@needs_native
def test_knobs__page_is_not_stale() -> None:
    page = KNOBS_PAGE.read_text()
    assert page == knobs.markdown(knobs.table()), "docs/KNOBS.md is stale: run make docs"


@needs_native
def test_counters__generated_files_are_not_stale() -> None:
    rows = telemetry.table()
    stub = ROOT / "transport" / "_native_counters.pyi"
    for file, text in ((COUNTERS_PAGE, telemetry.markdown(rows)), (stub, telemetry.stub(rows))):
        assert file.read_text() == text, f"{file.name} is stale: run make docs"


@needs_native
def test_counters__json_has_each_once() -> None:
    rows = json.loads(weft("counters", "--json", "-").stdout)
    assert len({(row["scope"], row["name"]) for row in rows}) == len(rows) > 40
    assert {row["kind"] for row in rows} == {"sum", "gauge", "maximum", "histogram"}


def test_native__a_missing_extension_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transport._native", None)
    native.load.cache_clear()
    try:
        with pytest.raises(native.NativeMissingError, match="run make build"):
            native.load()
    finally:
        native.load.cache_clear()


def completed(line: str, *words: str, folder: Path) -> list[str]:
    """What bash completes the words to, after it has run a line of its start file."""
    program = folder / "weft"
    main = "from transport.cli import main; main()"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{main}' \"$@\"\n")
    program.chmod(0o755)
    script = f'''{line}
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        $(complete -p weft | sed 's/.*-F \\([^ ]*\\).*/\\1/') weft
        printf '%s\\n' "${{COMPREPLY[@]}}"'''
    done = subprocess.run(
        ["bash", "-c", script, "bash", "weft", *words],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_completion__bash_completes_with_the_line_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "OPERATING.md").read_text()
    (line,) = re.findall(r"`(eval .*bash_source weft\)\")`", page)
    assert completed(line, "tr", folder=tmp_path) == ["trace"]
    measures = completed(line, "trace", "matrix", "--measure", "la", folder=tmp_path)
    assert measures == ["latency_mean", "latency_p99"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["docs", "op"], ["operating"]),
        (["docs", "OPERATING.md", "Ports-and"], ["ports-and-firewalls"]),
        (["docs", "nothing", "p"], []),
        (["docs", "--find", "op"], []),
        (["knobs", "weft_contr"], ["WEFT_CONTROL_PORT"]),
        (["knobs", "WEFT_CONTROL_PORT", "WEFT_CONTR"], []),
        (["deploy", "sl"], ["slurm.sbatch", "slurm_pyxis.sbatch"]),
        (["deploy", "slurm.sbatch", "sl"], ["slurm_pyxis.sbatch"]),
    ],
)
def test_completion__bash_completes_the_names_that_commands_take(
    tmp_path: Path, words: list[str], wanted: list[str]
) -> None:
    line = 'eval "$(_WEFT_COMPLETE=bash_source weft)"'
    assert completed(line, *words, folder=tmp_path) == wanted


def test_completion__sections_are_completed_to_words_that_print_them() -> None:
    page = (ROOT / "docs" / "OPERATING.md").read_text("utf-8")
    for one in docs.sections(page)[1:]:
        word = docs.completion_of(one).value
        assert docs.section_named(word, docs.sections(page), "OPERATING.md")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion__there_is_a_script_for_other_shells(shell: str) -> None:
    page = (ROOT / "docs" / "OPERATING.md").read_text()
    assert f"_WEFT_COMPLETE={shell}_source weft" in page
    assert f"_WEFT_COMPLETE={shell}_complete" in weft(_WEFT_COMPLETE=f"{shell}_source").stdout
