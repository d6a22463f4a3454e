"""Renders HTML pages from templates; all texts are escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transport.ground.build_info import build_text

INSTALL = "pip install jinja2"
OWN = Path(__file__).parent

Table = tuple[Sequence[str], Iterable[Sequence[str]]]


def installed() -> bool:
    """Whether Jinja2 is installed, which renders the pages; INSTALL is the command for that."""
    return find_spec("jinja2") is not None


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


def picture(svg: str) -> str:
    """A data: URL of a picture, so that the page contains the picture."""
    return f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
