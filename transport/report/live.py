"""Serves the report of a running job to browsers that know its token."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from transport.errors import WeftError
from transport.ground.text import printable

HEADERS = (
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)
TEXT, HTML = "text/plain; charset=utf-8", "text/html; charset=utf-8"


class LivePage:
    """A WSGI application with one page, which needs ?token=TOKEN.

    make: computes the page. It is called at most once in interval_s, when the page is loaded; the
    time that it takes itself does not count. A page that cannot be made is a line that says why.
    """

    def __init__(
        self,
        make: Callable[[], str],
        token: str,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._token = token.encode()
        self._interval_s = interval_s
        self._clock = clock
        self._made: tuple[str, str, bytes] | None = None
        self._made_s = 0.0

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        status, kind, body = self._answer(environ)
        length = ("Content-Length", str(len(body)))
        start(status, [("Content-Type", kind), length, *HEADERS])
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]

    def _answer(self, environ: dict[str, Any]) -> tuple[str, str, bytes]:
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return "405 Method Not Allowed", TEXT, b"load this page by GET\n"
        given = parse_qs(str(environ.get("QUERY_STRING", ""))).get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), self._token):
            return "403 Forbidden", TEXT, b"wrong token: use the URL that weft report printed\n"
        if environ.get("PATH_INFO", "/") not in ("", "/"):
            return "404 Not Found", TEXT, b"there is only one page: /\n"
        if self._made is None or self._clock() - self._made_s >= self._interval_s:
            self._made = self._page()
            self._made_s = self._clock()
        return self._made

    def _page(self) -> tuple[str, str, bytes]:
        try:
            return "200 OK", HTML, self._make().encode()
        except (WeftError, OSError) as error:
            said = str(error)
        # A trace that is being written, or is damaged, can raise any exception: the next load tries
        # again.
        except Exception as error:
            said = f"cannot read the trace: {type(error).__name__}: {error}"
        text = printable(" ".join(said.split()))
        return "503 Service Unavailable", TEXT, f"no report yet: {text}. Reload.\n".encode()
