"""`weft docs`: prints the pages of the documentation, which are in the wheel, and searches them."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from transport import native
from transport.cli.output import print_table
from transport.ground.text import nearest, printable

SHIPPED, CHECKOUT = native.PACKAGE / "docs", native.PACKAGE.parent / "docs"
HEADING = re.compile(r"(#+) (.*)")
BOLD = re.compile(r"\*\*([^*]+)\*\*")  # opens a part of a section
FENCE = "```"  # opens and closes a block of code, whose lines are no headings
HIT_MAX = 100  # characters that a search shows of a line


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with the text below it, up to the next heading. level: 1 for a page's title."""

    level: int
    title: str
    text: str  # with the heading itself


def pages() -> dict[str, Path]:
    """The pages by name in lower case; those of the checkout if weft runs in one."""
    folder = SHIPPED if SHIPPED.is_dir() else CHECKOUT
    found = {file.stem.lower(): file for file in sorted(folder.glob("*.md"))}
    if not found:
        raise click.ClickException(f"the pages are missing: there is no {folder}/*.md")
    return found


def sections(text: str) -> list[Section]:
    """The sections of a page, in its order."""
    found: list[Section] = []
    is_code = False
    for line in text.splitlines(keepends=True):
        is_code ^= line.startswith(FENCE)
        heading = None if is_code else HEADING.match(line)
        if heading is not None:
            found.append(Section(len(heading[1]), heading[2].strip(), line))
        elif found:
            last = found[-1]
            found[-1] = Section(last.level, last.title, last.text + line)
    return found


def _completions(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Pages, and after a page its sections, as the words of a link: ports-and-firewalls."""
    given = ctx.params.get("words") or ()
    if ctx.params.get("find") or len(given) > 1:
        return []
    try:
        known = pages()
        if not given:
            found = [CompletionItem(name) for name in known]
        else:
            text = known[page_named(given[0], tuple(known))].read_text("utf-8")
            found = [completion_of(one) for one in sections(text)[1:]]
    except (click.ClickException, OSError):
        return []
    return [one for one in found if one.value.startswith(incomplete.lower())]


def completion_of(section: Section) -> CompletionItem:
    """A section as the shell completes it: the words of a link, which it need not quote."""
    return CompletionItem("-".join(plain(section.title).split()), help=section.title)


@click.command("docs")
@click.option(
    "--find",
    is_flag=True,
    help="List the sections that have all these words or phrases; case counts in words with "
    "capitals after the first letter, such as RoCE.",
)
@click.argument("words", metavar="[PAGE [SECTION]]", nargs=-1, shell_complete=_completions)
def command(find: bool, words: tuple[str, ...]) -> None:
    """Print a page of the documentation, or one section of it; without PAGE list the pages.

    weft docs operating; weft docs operating "Ports and firewalls"; weft docs --find firewall
    """
    known = pages()
    if find:
        _search(known, words)
    elif not words:
        firsts = {name: sections(file.read_text("utf-8"))[0] for name, file in known.items()}
        rows = [(name, one.title, _second_line(one)) for name, one in firsts.items()]
        print_table(["page", "title", "for"], rows)
    else:
        name, _, anchor = words[0].partition("#")
        file = known[page_named(name, tuple(known))]
        wanted = " ".join((anchor, *words[1:])).strip()
        text = file.read_text("utf-8")
        shown = section_named(wanted, sections(text), file.name) if wanted else text
        show = click.echo_via_pager if sys.stdout.isatty() else click.echo
        show(shown.rstrip("\n"))


def page_named(word: str, known: Sequence[str]) -> str:
    """The page that is meant by operating, OPERATING.md, docs/OPERATING.md or oper."""
    wanted = word.replace("\\", "/").rpartition("/")[2].lower().removesuffix(".md")
    if wanted in known:
        return wanted
    begins = [name for name in known if wanted and name.startswith(wanted)]
    if len(begins) == 1:
        return begins[0]
    said = f"there is no page {printable(word)}{nearest(wanted, begins or known)}"
    raise click.UsageError(f"{said}; weft docs --find WORDS searches them")


def section_named(word: str, parts: Sequence[Section], page: str) -> str:
    """The text of the section whose title is or contains the word, with the sections below it.

    If there is none, that of the paragraphs that open with the word in bold.
    """
    wanted = plain(word)
    titles = [plain(one.title) for one in parts]
    found = [at for at, title in enumerate(titles) if title == wanted]
    found = found[:1] or [at for at, title in enumerate(titles) if wanted in title]
    if not found and (text := opened_by(wanted, parts)):
        return text
    if len(found) != 1:
        known = [parts[at].title for at in found or range(1, len(parts))]
        begins = f"several sections of {page} have" if found else f"{page} has no section"
        said = f"{begins} {printable(word)}{nearest(word, known)}"
        raise click.UsageError(f"{said}; weft docs --find WORDS searches all pages")
    first, level = found[0], parts[found[0]].level
    end = next((i for i in range(first + 1, len(parts)) if parts[i].level <= level), len(parts))
    return "".join(one.text for one in parts[first:end])


def opened_by(wanted: str, parts: Sequence[Section]) -> str:
    """The parts of sections that open with these words in bold, up to the next bold opening."""
    found: list[str] = []
    for section in parts:
        is_open = False
        for line in section.text.splitlines(keepends=True):
            if (bold := BOLD.match(line)) is not None:
                is_open = plain(bold[1]) == wanted
                if is_open:
                    found.append(f"{'#' * section.level} {section.title}\n\n")
            if is_open:
                found.append(line)
    return "".join(found)


def plain(title: str) -> str:
    """A title, or its name in a link, in lower case and without marks and punctuation."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title.lower())
    return " ".join(re.sub(r"[^\w ]", "", text.replace("-", " ")).split())


def _second_line(section: Section) -> str:
    return next((line for line in section.text.splitlines()[1:] if line), "")


def _search(known: dict[str, Path], words: Sequence[str]) -> None:
    """Prints page, section and a line of each section with all words or phrases.

    Whole words and their plurals count or, if no section has them, words that begin so.
    """
    wanted = [" ".join(word.split()) for word in words]
    if not any(wanted):
        raise click.UsageError("--find needs words: weft docs --find firewall")
    rows: list[tuple[str, str, str]] = []
    for end in (r"s?(?!\w)", ""):
        patterns = [_pattern(word, end) for word in wanted]
        for name, file in known.items() if not rows else ():
            for one in sections(file.read_text("utf-8")):
                text = " ".join([name, *one.text.split()])
                if all(pattern.search(text) for pattern in patterns):
                    rows.append((name, one.title, _hit(one, patterns)))
    if not rows:
        raise click.ClickException(f"no section has {printable(' '.join(words))}")
    print_table(["page", "section", "line"], rows)


def _pattern(words: str, end: str) -> re.Pattern[str]:
    """Matches words from the begin of a word to an `end`, in any case but for names as RoCE."""
    has_case = any(letter.isupper() for word in words.split() for letter in word[1:])
    begin = r"(?<!\w)" if words[:1].isalnum() else ""
    end = end if words[-1:].isalnum() else ""
    return re.compile(begin + re.escape(words) + end, 0 if has_case else re.I)


def _hit(section: Section, words: Sequence[re.Pattern[str]]) -> str:
    """The line of a section with most of the words, cut to what surrounds the first of them."""
    lines = section.text.splitlines()
    best = max(lines, key=lambda line: sum(word.search(line) is not None for word in words))
    places = [hit.start() for word in words if (hit := word.search(best))]
    begin = max(0, min(places, default=0) - HIT_MAX // 3)
    cut = best[begin : begin + HIT_MAX]
    return ("…" if begin else "") + cut + ("…" if begin + HIT_MAX < len(best) else "")
