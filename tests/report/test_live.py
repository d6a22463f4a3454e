"""Tests `weft report --live` on a folder of traces: the URL, its token, and how it ends."""

import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.api.support import PATIENCE_S, ROOT, line, running
from tests.live.support import weft_command
from tests.report.support import Page
from tests.report.test_page import job
from tests.waiting import until
from transport.errors import InvalidArgumentError
from transport.report.live import LivePage

pytest.importorskip("tornado")

TOKEN = "a token"


def got(url: str) -> tuple[int, str]:
    """The status and the text of what a server answers."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            assert answer.headers["Cache-Control"] == "no-store"
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_live__serves_the_page_to_who_has_the_token(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    process = subprocess.Popen(
        weft_command("report", "--live", str(folder), "--interval", "1"),
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running(process):
        url = line(process).removeprefix("weft: serving ")
        assert url.startswith("http://127.0.0.1:")
        status, text = got(url)
        assert (status, text[:15]) == (503, "no report yet: ")  # there is no folder yet
        job(folder, 2, 1, 1)
        until(lambda: got(url)[0] == 200, "the page of the job")
        page = Page(got(url)[1])
        assert "reload for newer numbers" in page.text
        assert page.data["numbers"]["ranks"] == 2
        for wrong in (url[:-1], url.partition("?")[0], url.partition("=")[0] + "="):
            assert got(wrong)[0] == 403
        assert got(url.replace("/?", "/other?"))[0] == 404
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_live__of_other_addresses_is_asked_for_and_warned_of(tmp_path: Path) -> None:
    process = subprocess.Popen(
        weft_command("report", "--live", str(tmp_path), "--listen", "0.0.0.0:0"),
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running(process):
        url = line(process).removeprefix("weft: serving ")
        assert url.startswith(f"http://{socket.gethostname()}:")
        here = url.replace(socket.gethostname(), "127.0.0.1")
        assert got(here)[0] == 503
        assert got(here.partition("?")[0])[0] == 403
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        said = process.stderr.read()
    assert "the URL's token crosses the network in clear text to 0.0.0.0: give --tls-cert" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "127.0.0.1:0"], "need --live"),
        (["--tls-cert", "cert.pem"], "need --live"),
        (["--live", "--listen", "8080"], "write HOST:PORT"),
        (["--live", "--tls-cert", "cert.pem"], "belong together"),
    ],
)
def test_live__refuses_addresses_and_files(tmp_path: Path, words: list[str], said: str) -> None:
    ended = subprocess.run(
        weft_command("report", str(tmp_path), *words),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode in (1, 2)
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_live__says_that_a_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            weft_command("report", "--live", str(tmp_path), "--listen", f"127.0.0.1:{port}"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert ended.returncode == 1
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in ended.stderr


def answer(page: LivePage, query: str, method: str = "GET") -> tuple[str, bytes]:
    found: list[str] = []
    environ = {"REQUEST_METHOD": method, "PATH_INFO": "/", "QUERY_STRING": query}
    body = b"".join(page(environ, lambda status, headers: found.append(status)))
    return found[0], body


def test_live_page__is_computed_again_after_the_interval_only() -> None:
    made: list[int] = []
    now_s = [100.0]

    def make() -> str:
        made.append(len(made))
        return f"page {made[-1]}"

    page = LivePage(make, TOKEN, 5.0, lambda: now_s[0])
    assert answer(page, "token=other") == (
        "403 Forbidden",
        b"wrong token: use the URL that weft report printed\n",
    )
    assert made == []
    for at_s, wanted in ((100.0, b"page 0"), (104.9, b"page 0"), (105.0, b"page 1")):
        now_s[0] = at_s
        assert answer(page, "token=a%20token") == ("200 OK", wanted)
    assert answer(page, "token=a%20token", "HEAD") == ("200 OK", b"")
    assert answer(page, "token=a%20token", "POST")[0] == "405 Method Not Allowed"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidArgumentError("no traces\nin x"), b"no report yet: no traces in x. Reload.\n"),
        (KeyError("x"), b"no report yet: cannot read the trace: KeyError: 'x'. Reload.\n"),
    ],
)
def test_live_page__says_why_there_is_none(error: Exception, said: bytes) -> None:
    def make() -> str:
        raise error

    page = LivePage(make, TOKEN, 5.0)
    assert answer(page, "token=a+token") == ("503 Service Unavailable", said)
