"""Renders HTML pages from templates; all texts are escaped."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from transport.ground.build_info import build_text

OWN = Path(__file__).parent
# Parts of matplotlib's SVG that a page needs not: texts as comments, metadata, namespaces.
NOT_SHOWN = re.compile(r'<!--.*?-->|<metadata>.*?</metadata>| xmlns(:\w+)?="[^"]*"', re.DOTALL)

Table = tuple[Sequence[str], Iterable[Sequence[str]]]


def rendered(template: Path | str, *, title: str, **values: Any) -> str:
    """Renders a template of this folder, or one at another path, that extends base.html.

    The head of the page shows `title`, and of `values` the keys `command` and `partial`.
    """
    import jinja2

    file = OWN / template
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader([file.parent, OWN]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    ).get_template(file.name)
    made = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}, {build_text()}"
    shown = {"command": "", "partial": False, **values}
    return found.render(title=title, made=made, **shown)


def as_it_is(text: str) -> Any:
    """Marks a text that must not be escaped, such as the data of a script."""
    from markupsafe import Markup

    return Markup(text)


def as_json(value: Any) -> Any:
    """JSON for an element <script type="application/json">: no text in it can end the element."""
    return as_it_is(json.dumps(value).replace("<", "\\u003c"))


def script_of(*names: str) -> tuple[Any, str]:
    """Files of this folder as the content of one element <script>, and its source for a policy.

    With that source in a Content-Security-Policy, a browser runs no other script.
    """
    parts = ('"use strict";', *((OWN / name).read_text() for name in names))
    text = "\n".join(parts)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return as_it_is(text), f"'sha256-{digest}'"


def plot(figure: Any) -> Any:
    """A matplotlib figure as an element of the page, in the colours of the page's scheme.

    Equal figures give equal elements. What was black is drawn in the colour of text, and what was
    white in that of the background. Texts are paths.
    """
    import matplotlib as mpl

    figure.tight_layout()
    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "weft", "svg.fonttype": "path"}):
        figure.savefig(out, format="svg", metadata={"Date": None}, facecolor="white")
    text = out.getvalue()
    svg = NOT_SHOWN.sub("", text[text.index("<svg") :]).replace("#000000", "currentColor")
    return as_it_is(svg.replace("#ffffff", "var(--paper)"))
