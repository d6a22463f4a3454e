"""Tests in Chromium that a report's script runs without errors, and what it draws."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.report.support import Page, reported
from tests.report.test_page import EVIL, job
from tests.waiting import PATIENCE_S

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"there is no browser here: none of {', '.join(NAMES)}")
    return found


def loaded(browser: str, file: Path, folder: Path) -> tuple[Page, list[str]]:
    """The page after its scripts have run, and the lines of the console."""
    done = subprocess.run(
        [
            *(browser, "--headless", "--disable-gpu", "--enable-logging=stderr"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            f"--user-data-dir={folder / 'profile'}",
            *("--virtual-time-budget=20000", "--dump-dom", file.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return Page(done.stdout), [one for one in done.stderr.splitlines() if "CONSOLE" in one]


@pytest.mark.parametrize("function", ["AllReduce", EVIL])
def test_browser__draws_all_charts_without_an_error(
    tmp_path: Path, browser: str, function: str
) -> None:
    folder = job(tmp_path / "job", 8, 4, 2, function)
    written = reported(folder, "--price", "2")
    page, console = loaded(browser, tmp_path / "job.html", tmp_path)
    assert console == []
    charts = written.data["charts"]
    assert ("data-drawn", str(len(charts))) in page.attributes
    assert page.data == written.data
    assert page.rows == written.rows
    # Chart.js and the matrix have given each canvas a size.
    widths = [value for name, value in page.attributes if name == "width"]
    assert len([one for one in widths if one not in (None, "0")]) >= 1 + len(charts)
    assert page.tags["script"] == 2
    assert "img" not in page.tags


def test_browser__a_script_that_is_not_of_the_page_does_not_run(
    tmp_path: Path, browser: str
) -> None:
    """The console tells of the refusal, so it would tell of errors of the page, too."""
    reported(job(tmp_path / "job", 2, 1, 1))
    file = tmp_path / "job.html"
    evil = "<script>document.body.textContent = ''</script></body>"
    file.write_text(file.read_text().replace("</body>", evil))
    page, console = loaded(browser, file, tmp_path)
    assert any("Content Security Policy" in one for one in console)
    assert page.rows
