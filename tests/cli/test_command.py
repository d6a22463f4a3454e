"""Tests `weft policy`: it lists registered policies, and its errors give line and reason."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

pytest.importorskip("numba")
from click.testing import CliRunner, Result

from congestion import registry
from transport.cli.doctor import check_policies
from transport.cli.policy import policy_group
from transport.compiler import PolicyError

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_policy.py"


def test_policy_list__table_and_json() -> None:
    shown = CliRunner().invoke(policy_group, ["list"])
    assert shown.exit_code == 0
    assert "power_of_two" in shown.output
    entries = json.loads(CliRunner().invoke(policy_group, ["list", "--json", "-"]).output)
    names = {(entry["family"], entry["name"]) for entry in entries}
    assert {("window", "swift"), ("loss", "rack"), ("credit", "grant")} <= names
    assert all(entry["decides"] for entry in entries)


def test_policy_compile__writes_the_library(tmp_path: Path) -> None:
    out = tmp_path / "mine.so"
    done = CliRunner().invoke(policy_group, ["compile", str(EXAMPLE), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert out.read_bytes()[:4] == b"\x7fELF"


def test_policy_compile__a_refusal_names_file_line_reason_and_remedy(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    text = EXAMPLE.read_text()
    wrong.write_text(text.replace("flow.last_cut_ns = event.now_ns", "print(event.now_ns)"))
    line = wrong.read_text().splitlines().index("        print(event.now_ns)") + 1
    done = CliRunner().invoke(policy_group, ["compile", str(wrong), "-o", str(tmp_path / "x.so")])
    assert done.exit_code == 1
    assert f"{wrong}:{line}: print cannot be called here; remove it" in done.output
    assert not (tmp_path / "x.so").exists()


def test_policy_new__what_it_writes_passes_its_check(tmp_path: Path) -> None:
    path = tmp_path / "ours.py"
    assert CliRunner().invoke(policy_group, ["new", str(path)]).exit_code == 0
    done = CliRunner().invoke(policy_group, ["check", "--quick", "--events", "2500", str(path)])
    assert done.exit_code == 0, done.output
    assert "checks passed" in done.output
    assert "Undeclared properties" in done.output
    again = CliRunner().invoke(policy_group, ["new", str(path)])
    assert again.exit_code == 2
    assert "exists" in again.output


@pytest.mark.parametrize("name", ["1.py", "a b", "a b.py", "x+y", "ä", "-", "x" * 48])
def test_policy_new__names_are_letters_digits_and_underscores(tmp_path: Path, name: str) -> None:
    done = CliRunner().invoke(policy_group, ["new", "--", str(tmp_path / name)])
    assert done.exit_code == 2
    assert "a policy name has" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["compile", "-o", "{}/x.so"], ["list", "--json", "{}/a/x"]])
def test_policy__a_file_that_cannot_be_written_is_wrong_usage(
    tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    words = [word.format(tmp_path / "file") for word in words]
    done = CliRunner().invoke(policy_group, words + ["swift"] * (words[0] == "compile"))
    assert done.exit_code == 2
    assert "cannot write" in done.output


def test_policy_compile__a_cpu_that_is_none_is_the_options_fault() -> None:
    done = CliRunner().invoke(policy_group, ["compile", "swift", "--cpu", "pdp11"])
    assert done.exit_code == 2
    assert "'--cpu': unknown CPU baseline 'pdp11'" in done.output


def test_policy_error__has_a_line_only_where_one_is_known() -> None:
    assert str(PolicyError("a.py", 3, "why", "what")) == "a.py:3: why; what"
    assert str(PolicyError("a.py", 0, "why", "what")) == "a.py: why; what"


@pytest.fixture
def broken_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution whose policy cannot be imported."""
    described = tmp_path / "theirs-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[weft.policies]\nvegas = weft_theirs:POLICY\n")
    (tmp_path / "weft_theirs.py").write_text("raise RuntimeError('of\\ntheirs')\n")
    monkeypatch.syspath_prepend(tmp_path)


BROKEN = "'vegas' of theirs: weft_theirs:POLICY cannot be loaded: RuntimeError"


@pytest.mark.usefixtures("broken_package")
@pytest.mark.parametrize("words", [["check", "vegas"], ["compile", "vegas"], ["try", "vegas"]])
def test_policy__a_broken_package_is_named_in_one_line(words: list[str]) -> None:
    done = CliRunner().invoke(policy_group, words)
    assert done.exit_code == 1
    assert done.output.count("\n") == 1
    assert BROKEN in done.output
    assert "repair theirs or uninstall it" in done.output


@pytest.mark.usefixtures("broken_package")
def test_policy__a_broken_package_stands_in_nobodys_way(tmp_path: Path) -> None:
    listed = CliRunner().invoke(policy_group, ["list"])
    assert (listed.exit_code, "power_of_two" in listed.output) == (0, True)
    assert f"NOT LISTED: the entry point {BROKEN}" in listed.output
    document = json.loads(CliRunner().invoke(policy_group, ["list", "--json", "-"]).output)
    assert [entry["name"] for entry in document if "problem" in entry] == ["vegas"]
    done = CliRunner().invoke(policy_group, ["compile", "dctcp", "-o", str(tmp_path / "x.so")])
    assert done.exit_code == 0, done.output
    finding = check_policies()
    assert finding.state == "limited"
    assert BROKEN in finding.remedy


def test_policy__a_shipped_name_given_again_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weft_again.py").write_text("from congestion.window.swift import POLICY\n")
    point = EntryPoint("swift", "weft_again:POLICY", registry.ENTRY_POINT_GROUP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    done = CliRunner().invoke(policy_group, ["compile", "swift", "-o", str(tmp_path / "x.so")])
    assert done.exit_code == 0
    assert "warning: the window policy 'swift' is weft's own" in done.output
    assert "weft_again" in done.output


def test_policy_compile__makes_no_folder(tmp_path: Path) -> None:
    out = tmp_path / "absent" / "x.so"
    done = CliRunner().invoke(policy_group, ["compile", "swift", "-o", str(out)])
    assert (done.exit_code, "there is no folder" in done.output) == (2, True)
    assert not out.parent.exists()


def test_policy_check__events_are_bounded() -> None:
    done = CliRunner().invoke(policy_group, ["check", "swift", "--events", "9" * 19])
    assert (done.exit_code, "'--events'" in done.output) == (2, True)


def quick(*arguments: str) -> Result:
    return CliRunner().invoke(policy_group, ["check", "--quick", "--events", "2500", *arguments])


def test_policy_check__a_failure_says_what_to_look_at(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    cut = "flow.window_bytes * params.factor, params.window_bytes_min"
    text = EXAMPLE.read_text()
    assert cut in text
    wrong.write_text(text.replace(cut, "-1.0, -2.0"))
    done = quick(str(wrong), "--seed", "9")
    assert done.exit_code == 1
    assert "or less stops the flow" in done.output
    assert "clamp to 1 * segment_bytes or more, or allow less" in done.output
    assert "measured with one path without a network, RTT 100 us; after " in done.output


def test_policy_check__a_warning_is_a_failure_if_strict(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    marks = "    if event.ecn_segments > 0:\n        cut(flow, params, event, result)\n"
    text = EXAMPLE.read_text()
    assert marks in text
    wrong.write_text(text.replace(marks, ""))
    out = tmp_path / "out.json"
    done = quick(str(wrong), "--json", str(out))
    assert done.exit_code == 0
    found = {one["check"]: one for one in json.loads(out.read_text())["checks"]}
    warned = found["answers marks or delay"]
    assert (warned["status"], warned["property"]) == ("warning", "congestion_response")
    assert warned["where"].startswith("10 Gb/s, RTT 50 us, buffer 4 MiB, bursts of 64 KiB, 1 flow")
    done = quick(str(wrong), "--strict")
    assert done.exit_code == 1
    assert "FAILED: answers marks or delay: a policy that only losses slow down" in done.output
    assert "  measured with 10 Gb/s, RTT 50 us" in done.output


def test_policy_check__a_refused_file_names_the_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(EXAMPLE.read_text().replace("if event.now_ns", "while event.now_ns"))
    done = quick(str(wrong))
    assert done.exit_code == 1
    assert "while has no bound" in done.output


def test_policy_check__json_of_a_registered_name() -> None:
    done = quick("aimd", "--json", "-")
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert (content["family"], content["name"], content["passed"]) == ("window", "aimd", True)
    names = {check["check"] for check in content["checks"]}
    assert {"growth", "fair", "account in flight", "same on random events"} <= names


def test_policy_check__wrong_names_are_wrong_usage() -> None:
    assert quick("nosuch").exit_code == 2
    assert "window/fixed" in quick("fixed").output
    assert quick("fixed").exit_code == 2
    assert quick("absent.py").exit_code == 2
    assert "'--seed'" in quick("aimd", "--seed", "-1").output
    assert quick("aimd", "--seed", "-1").exit_code == 2
