"""Tests the HTTP server of `weft metrics`: idle clients, huge requests, tokens and TLS."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.support import PATIENCE_S, ROOT, line, running
from tests.live.support import weft, weft_command
from tests.waiting import until

pytest.importorskip("prometheus_client")
pytest.importorskip("tornado")
from prometheus_client import Metric

from transport.live import http

TOKEN = "c0ffee" * 8


@contextlib.contextmanager
def server(where: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`weft metrics` on a free port of loopback; yields the process and the port."""
    process = subprocess.Popen(
        weft_command("metrics", "--listen", "127.0.0.1:0", *options),
        cwd=ROOT,
        env=os.environ | {"WEFT_TELEMETRY": str(where), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running(process):
        yield process, int(line(process).split("/")[2].rpartition(":")[2])


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def reply(port: int, request: bytes) -> bytes:
    """All that the server sends until it closes the connection."""
    with connected(port) as one:
        with contextlib.suppress(ConnectionError):
            one.sendall(request)
        parts = []
        with contextlib.suppress(ConnectionError):
            while part := one.recv(1 << 16):
                parts.append(part)
        return b"".join(parts)


def scraped(port: int, *lines: str) -> bytes:
    head = "\r\n".join(["GET /metrics HTTP/1.1", "Host: here", *lines, "", ""])
    return reply(port, head.encode())


class Large:
    """A collector of 12 MB."""

    def collect(self) -> Iterator[Metric]:
        metric = Metric("large", "", "gauge")
        for number in range(100_000):
            metric.add_sample("large", {"number": f"{number:0100}"}, number)
        yield metric


def threads(process: subprocess.Popen[str]) -> int:
    return len(os.listdir(f"/proc/{process.pid}/task"))


def test_idle__connections_take_no_thread_and_keep_nobody_out(tmp_path: Path) -> None:
    with server(tmp_path) as (process, port), contextlib.ExitStack() as stack:
        assert b"weft_exporter_series" in scraped(port)
        before = threads(process)
        begun = b"GET /metrics HTTP/1.1\r\nX: "
        for number in range(900):
            one = stack.enter_context(connected(port))
            one.sendall(begun if number % 2 else b"")
        assert b"weft_exporter_series" in scraped(port)
        assert threads(process) == before
        descriptors = len(os.listdir(f"/proc/{process.pid}/fd"))
        assert descriptors < http.CONNECTIONS_MAX + 50


def test_idle__connections_are_closed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that send a byte now and then, or do not read what they asked for."""
    monkeypatch.setattr(http, "CONNECTION_S", 1.0)
    with http.served(Large(), "127.0.0.1", 0, http.Access()) as port:
        # The server's thread has opened its own descriptors when it answers.
        assert reply(port, b"GET /favicon.ico HTTP/1.1\r\nHost: here\r\n\r\n")
        before = len(os.listdir("/proc/self/fd"))
        with connected(port) as drips, connected(port) as deaf, connected(port) as idle:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")

            def dripped() -> bool:
                try:
                    drips.sendall(b"G")
                except ConnectionError:
                    return True
                return False

            until(dripped)
            assert idle.recv(10) == b""
            # The server runs in this process: only the client's end of each connection is left.
            # To read what the kernel has buffered for the deaf one would take minutes.
            until(lambda: len(os.listdir("/proc/self/fd")) <= before + 3, "a connection is left")


def test_idle__connections_interrupt_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """More half requests than there may be connections come while a client reads its answer."""
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 16)
    with (
        http.served(Large(), "127.0.0.1", 0, http.Access()) as port,
        connected(port) as reader,
        contextlib.ExitStack() as stack,
    ):
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
        answer = reader.recv(1 << 16)
        for _ in range(64):
            stack.enter_context(connected(port)).sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        while part := reader.recv(1 << 16):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head.lower()


def test_page__that_takes_long_keeps_no_other_request_from_being_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While a page is made for longer than requests may take, idle connections are closed and other
    requests are read, which are answered after it. A client that left is no error."""
    monkeypatch.setattr(http, "REQUEST_S", 1.0)
    begun, may_end = threading.Event(), threading.Event()

    def page(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        start("200 OK", [("Content-Type", "text/plain")])
        return [b"the page"]

    asked = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
    with (
        http.serving(page, "127.0.0.1", 0, http.Access()) as port,
        contextlib.ExitStack() as stack,
    ):
        idle = [stack.enter_context(connected(port)) for _ in range(300)]
        stack.callback(may_end.set)
        first = stack.enter_context(connected(port))
        first.sendall(asked)
        with connected(port) as gone:
            gone.sendall(asked)
        assert begun.wait(PATIENCE_S)
        second = stack.enter_context(connected(port))
        second.sendall(asked)
        assert all(one.recv(10) == b"" for one in idle)
        may_end.set()
        for one in (first, second):
            answer = b""
            while part := one.recv(1 << 16):
                answer += part
            assert answer.endswith(b"the page")
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"GET /" + b"A" * 200_000 + b" HTTP/1.0\r\n\r\n", b""),
        (b"GET /metrics HTTP/1.0\r\n" + b"X: y\r\n" * 50_000 + b"\r\n", b""),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999\r\n\r\n", b"HTTP/1.1 400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", b"HTTP/1.1 400"),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
            b"HTTP/1.1 400",
        ),
        (b"\0" * 1000 + b"\r\n\r\n", b"HTTP/1.1 400"),
    ],
)
def test_request__beyond_its_bounds_is_refused(
    tmp_path: Path, request_: bytes, answer: bytes
) -> None:
    with server(tmp_path) as (process, port):
        assert reply(port, request_).startswith(answer)
        assert b"weft_exporter_series" in scraped(port)
        assert process.poll() is None


def token_file(folder: Path, text: str = TOKEN) -> Path:
    file = folder / "token"
    file.write_text(text + "\n")
    file.chmod(0o600)
    return file


def test_token__is_needed_and_compared_whole(tmp_path: Path) -> None:
    with server(tmp_path, "--token-file", str(token_file(tmp_path))) as (process, port):
        good = scraped(port, f"Authorization: Bearer {TOKEN}")
        assert good.startswith(b"HTTP/1.1 200")
        assert b"weft_exporter_series" in good
        for given in (
            (),
            ("Authorization: Bearer",),
            (f"Authorization: {TOKEN}",),
            (f"Authorization: Bearer {TOKEN}x",),
            (f"Authorization: Bearer {TOKEN[:-1]}",),
            ("Authorization: Bearer \xff\xfe",),
            ("Authorization: Basic eDp5",),
        ):
            refused = scraped(port, *given)
            assert refused.startswith(b"HTTP/1.1 401")
            assert b"weft_" not in refused
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE_S)
        # One line reports a refused request, however many were refused in a minute.
        assert err.count("refused a request: 401 GET /metrics (127.0.0.1)") == 1


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (TOKEN, 0o644, "others than uid"),
        (TOKEN, 0o620, "others than uid"),
        ("short", 0o600, "must hold one word of 16 to 1024 ASCII characters"),
        ("two words of a token", 0o600, "must hold one word"),
        ("", 0o600, "must hold one word"),
    ],
)
def test_token__in_a_file_that_is_wrong_is_one_line(
    tmp_path: Path, text: str, mode: int, said: str
) -> None:
    file = token_file(tmp_path, text)
    file.chmod(mode)
    done = weft("metrics", "--listen", "127.0.0.1:0", "--token-file", str(file), where=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert said in done.stderr


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    words = (
        f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout {key}"
    )
    try:
        subprocess.run(
            [
                "openssl",
                *words.split(),
                "-keyout",
                str(key),
                "-out",
                str(cert),
                "-subj",
                "/CN=here",
                "-addext",
                "subjectAltName=DNS:localhost,IP:127.0.0.1",
            ],
            check=True,
            capture_output=True,
            timeout=PATIENCE_S,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no certificate can be made: {error}")
    key.chmod(0o600)
    return cert, key


def test_tls__serves_whoever_trusts_the_certificate(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    files = ("--tls-cert", str(cert), "--tls-key", str(key))
    with server(tmp_path, *files, "--token-file", str(token_file(tmp_path))) as (_, port):
        trusting = ssl.create_default_context(cafile=str(cert))
        url = f"https://127.0.0.1:{port}/metrics"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S, context=trusting) as answer:
            assert b"weft_exporter_series" in answer.read()
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(request, timeout=PATIENCE_S)
        assert reply(port, b"GET /metrics HTTP/1.0\r\n\r\n").startswith(b"HTTP") is False
        with contextlib.ExitStack() as stack:
            for _ in range(900):  # handshakes that never begin
                stack.enter_context(connected(port))
            with urllib.request.urlopen(request, timeout=PATIENCE_S, context=trusting) as answer:
                assert answer.status == 200


def test_tls__files_that_are_wrong_are_one_line(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    open_key = tmp_path / "open.pem"
    open_key.write_bytes(key.read_bytes())
    open_key.chmod(0o644)
    for files, said in (
        (("--tls-cert", cert), "--tls-cert and --tls-key belong together"),
        (("--tls-cert", cert, "--tls-key", open_key), "others than uid"),
        (("--tls-cert", key, "--tls-key", key), "cannot be used: they must be PEM"),
    ):
        done = weft("metrics", "--listen", "127.0.0.1:0", *map(str, files), where=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert said in done.stderr


def test_warnings__are_for_addresses_that_others_reach() -> None:
    plain, tokened = http.Access(), http.Access(TOKEN.encode())
    for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost"):
        assert plain.warnings(host) == []
    for host in ("0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "node7"):
        assert "give --token-file" in plain.warnings(host)[0]
        assert "in clear text" in tokened.warnings(host)[0]
        tls = http.Access(TOKEN.encode(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        assert tls.warnings(host) == []
