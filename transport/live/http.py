"""Serves metrics and pages over HTTP or HTTPS, from two threads and bounded memory.

The server is Tornado's: its loop waits for all connections at once, so idle ones take no thread,
and it has TLS, and bounds on headers and bodies. This module adds a bound on the number and the
duration of connections, and checks the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import resource
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport import trusted
from transport.errors import InvalidArgumentError

if TYPE_CHECKING:
    from prometheus_client.registry import Collector
    from tornado.httputil import HTTPServerRequest
    from tornado.iostream import IOStream

CONNECTION_S = 30.0  # a connection is closed after this time, whatever it does
REQUEST_S = 10.0  # a request must be complete after this time
# The oldest connection is closed if there are more, or more than half of the descriptor limit.
CONNECTIONS_MAX = 512
HEADER_BYTES_MAX = 16 << 10
BODY_BYTES_MAX = 1 << 10
FILE_BYTES_MAX = 1 << 20
LOG_S = 60.0  # at most one line about refused requests in this time
TOKEN_CHARACTERS = range(16, 1_025)


class AccessError(InvalidArgumentError):
    """The token, certificate or key cannot be used; the message is one line."""


@dataclass(frozen=True)
class Access:
    """Access to the metrics. token: the bearer token that clients must send; None: none is needed.

    tls: certificate and key for HTTPS; None: HTTP.
    """

    token: bytes | None = None
    tls: ssl.SSLContext | None = None

    @property
    def scheme(self) -> str:
        """The scheme of the URL."""
        return "http" if self.tls is None else "https"

    def warnings(self, host: str) -> list[str]:
        """Lines about what others can do if the server listens at this address."""
        if is_loopback(host):
            return []
        if self.token is None:
            return [
                f"whoever reaches {host} can read the metrics: give --token-file, or listen at "
                "127.0.0.1"
            ]
        if self.tls is None:
            return [f"the token crosses the network in clear text to {host}: give --tls-cert"]
        return []


def is_loopback(host: str) -> bool:
    """Whether only this host reaches an address; False for all names except `localhost`."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def access(token_file: Path | None, certificate: Path | None, key: Path | None) -> Access:
    """Reads the files. AccessError if one cannot be used, or others can change or read it."""
    if (certificate is None) != (key is None):
        raise AccessError("--tls-cert and --tls-key belong together: give both")
    token = None if token_file is None else _token(token_file)
    tls = None if certificate is None or key is None else _tls(certificate, key)
    return Access(token, tls)


def _token(file: Path) -> bytes:
    with _opened(file, "the token file", secret=True) as opened:
        token = opened.read(FILE_BYTES_MAX).strip()
    if len(token) not in TOKEN_CHARACTERS or not all(0x21 <= one <= 0x7E for one in token):
        least, most = TOKEN_CHARACTERS.start, TOKEN_CHARACTERS.stop - 1
        raise AccessError(
            f"the token file {file} must hold one word of {least} to {most} ASCII characters: make "
            f"one with openssl rand -hex 32"
        )
    return bytes(token)


def _tls(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with (
        _opened(certificate, "the certificate", secret=False) as public,
        _opened(key, "the key", secret=True) as private,
    ):
        # OpenSSL gets the paths of the open descriptors, so that it reads the files that were
        # checked. Without the argument `password` it would ask for one at the terminal.
        cert, private_key = (f"/proc/self/fd/{each.fileno()}" for each in (public, private))
        try:
            context.load_cert_chain(cert, private_key, password="")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise AccessError(
                f"the certificate {certificate} and the key {key} cannot be used: they must be PEM,"
                f" belong together, and the key must have no password ({error})"
            ) from None
    return context


@contextlib.contextmanager
def _opened(file: Path, what: str, *, secret: bool) -> Iterator[Any]:
    try:
        opened = trusted.open_file(file, secret=secret, what=what)
    except trusted.UntrustedError as error:
        raise AccessError(str(error)) from None
    with opened:
        yield opened


class Seldom(logging.Filter):
    """Passes at most one warning in LOG_S seconds, because clients could fill the log with them."""

    def __init__(self) -> None:
        super().__init__()
        self._last_s = -LOG_S
        self._withheld = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = time.monotonic()
        if now_s - self._last_s < LOG_S:
            self._withheld += 1
            return False
        text = record.getMessage()
        if self._withheld:
            text += f" (and {self._withheld} others since the last such line)"
        record.msg, record.args = f"refused a request: {text}", None
        self._last_s, self._withheld = now_s, 0
        return True


SELDOM = Seldom()


@contextlib.contextmanager
def served(collector: Collector, host: str, port: int, who: Access) -> Iterator[int]:
    """Serves the collector's metrics in a thread; yields the port. OSError if it cannot listen.

    port 0 is any free one.
    """
    from prometheus_client import CollectorRegistry, make_wsgi_app

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    with serving(_guarded(make_wsgi_app(registry), who.token), host, port, who) as at:
        yield at


@contextlib.contextmanager
def serving(
    application: Any, host: str, port: int, who: Access, connection_s: float | None = None
) -> Iterator[int]:
    """Serves a WSGI application in a thread; yields the port. OSError if it cannot listen.

    Another thread calls the application, for one request at a time. who: gives TLS; the
    application itself checks tokens. connection_s: how long a connection may last; None:
    CONNECTION_S.
    """
    from tornado.netutil import bind_sockets

    for name in ("access", "general"):
        logging.getLogger(f"tornado.{name}").addFilter(SELDOM)
    longest_s = CONNECTION_S if connection_s is None else connection_s
    sockets = bind_sockets(port, host, backlog=1024)
    stop = _Stop()
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(application, sockets, who, stop, longest_s)),
        name="server",
    )
    thread.start()
    try:
        yield sockets[0].getsockname()[1]
    finally:
        stop.set()
        thread.join()


class _Stop:
    """Ends the event loop of another thread, even if that loop has not started yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = False
        self._wake: Callable[[], object] | None = None

    def set(self) -> None:
        with self._lock:
            self._ended = True
            if self._wake is not None:
                self._wake()

    async def wait(self) -> None:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._wake = lambda: loop.call_soon_threadsafe(event.set)
            if self._ended:
                event.set()
        await event.wait()


async def _serve(
    application: Any, sockets: Any, who: Access, stop: _Stop, connection_s: float
) -> None:
    from tornado.httpserver import HTTPServer
    from tornado.wsgi import WSGIContainer

    opened = Connections(connection_s)
    # A page may take minutes. Its own thread leaves the loop free to read other requests in time.
    answering = ThreadPoolExecutor(1, "answer")

    class Container(WSGIContainer):
        def __call__(self, request: HTTPServerRequest) -> None:
            opened.asked(request)
            super().__call__(request)

    class Server(HTTPServer):
        def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
            opened.add(stream)
            super().handle_stream(stream, address)

    server = Server(
        Container(application, answering),
        no_keep_alive=True,
        ssl_options=who.tls,
        max_header_size=HEADER_BYTES_MAX,
        max_body_size=BODY_BYTES_MAX,
        max_buffer_size=HEADER_BYTES_MAX + BODY_BYTES_MAX,
        idle_connection_timeout=REQUEST_S,
        body_timeout=REQUEST_S,
    )
    server.add_sockets(sockets)
    await stop.wait()
    server.stop()
    opened.close()
    answering.shutdown(cancel_futures=True)


class Connections:
    """Bounds how many connections there are, and how long each may last.

    At the limit, a new connection replaces the oldest one that has sent no request yet, or else
    the oldest one. So idle connections neither keep other clients out nor interrupt an answer.
    """

    def __init__(self, connection_s: float) -> None:
        self._connection_s = connection_s
        self._most = min(CONNECTIONS_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._timers: dict[IOStream, asyncio.TimerHandle] = {}
        self._idle: dict[IOStream, None] = {}

    def add(self, stream: IOStream) -> None:
        if len(self._timers) >= self._most:
            for one in [one for one in self._timers if one.closed()]:
                self._end(one)
        if len(self._timers) >= self._most:
            self._end(next(iter(self._idle or self._timers)))
        loop = asyncio.get_running_loop()
        self._timers[stream] = loop.call_later(self._connection_s, self._end, stream)
        self._idle[stream] = None

    def asked(self, request: HTTPServerRequest) -> None:
        """Notes that the request of a connection has arrived completely."""
        stream: IOStream = request.connection.stream  # type: ignore[union-attr]
        self._idle.pop(stream, None)

    def close(self) -> None:
        for one in list(self._timers):
            self._end(one)

    def _end(self, stream: IOStream) -> None:
        self._idle.pop(stream, None)
        self._timers.pop(stream).cancel()
        stream.close()


def _guarded(application: Any, token: bytes | None) -> Any:
    """Makes the WSGI application answer only requests with the token in header Authorization."""
    if token is None:
        return application

    def digest(text: bytes) -> bytes:
        return hashlib.sha256(text).digest()

    wanted = digest(b"Bearer " + token)

    def guarded(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        given = str(environ.get("HTTP_AUTHORIZATION", "")).strip().encode()
        # Digests have the same length and are compared in constant time: timing does not reveal the
        # token.
        if hmac.compare_digest(digest(given), wanted):
            made: Iterable[bytes] = application(environ, start)
            return made
        start("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
        return [b"give the token: Authorization: Bearer TOKEN\n"]

    return guarded
