"""Tests that the plugin runs with glibc 2.28, and that policies need no library."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.wheel import needed, too_new
from transport import native

from .conftest import Play


@pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None,
    reason="built by the system's compiler: pip install ziglang, and build again",
)
def test_plugin__asks_for_no_newer_c_library(plugin: Path) -> None:
    for library in (plugin, native.PLUGIN_PATH):
        assert list(too_new(library, library.name)) == []


def test_policies__ask_for_no_library_at_all() -> None:
    policies = sorted(native.POLICY_DIRECTORY.glob("*.so"))
    assert policies
    for policy in policies:
        assert needed(policy) == set()
        said = subprocess.run(
            ["readelf", "--dynamic", str(policy)], capture_output=True, text=True, check=True
        ).stdout
        assert "NEEDED" not in said or "libm.so.6" in said


@pytest.mark.parametrize("how", ["copy", "symlink"])
def test_plugin__has_its_policies_wherever_it_lies(
    play: Play, plugin: Path, tmp_path: Path, how: str
) -> None:
    elsewhere = tmp_path / plugin.name
    if how == "copy":
        shutil.copy(plugin, elsewhere)
    else:
        elsewhere.symlink_to(plugin)
    play(elsewhere, 12, 2, "transfer", WEFT_WINDOW_POLICY="cubic", WEFT_PATH_POLICY="reps")


def test_plugin__takes_no_policy_of_a_folder_above_a_copy(
    play: Play, plugin: Path, tmp_path: Path
) -> None:
    """A copied plugin loads no policy from the folder above, which may be writable by all users."""
    (tmp_path / "lib").mkdir()
    elsewhere = tmp_path / "lib" / plugin.name
    shutil.copy(plugin, elsewhere)
    for folder in (tmp_path, tmp_path / "lib"):
        (folder / "policies").mkdir()
        (folder / "policies" / "window_swift.so").write_bytes(b"")
    play(elsewhere, 12, 2, "transfer")
