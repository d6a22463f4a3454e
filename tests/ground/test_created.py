"""Tests that a folder in which no file can be created is known before anything is written."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from transport.cli.options import output_file
from transport.ground import created


def test_refusal__a_folder_that_takes_files_is_left_as_it_was(tmp_path: Path) -> None:
    assert created.refusal(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
    assert created.refusal(tmp_path / "missing") == "No such file or directory"


def test_refusal__also_of_a_folder_where_root_has_all_rights() -> None:
    assert created.refusal("/proc")
    with pytest.raises(click.BadParameter, match="no file can be created in /proc"):
        output_file(".json").convert("/proc/x.json", None, None)
