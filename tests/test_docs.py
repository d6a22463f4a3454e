"""Tests the pages as a reader walks them: links lead somewhere, each page says for whom it is."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.M | re.S)


def pages() -> list[Path]:
    """The README and the pages that it leads to."""
    folders = (DOCS, ROOT / "bench", ROOT / "tests")
    return [ROOT / "README.md", *(page for each in folders for page in sorted(each.rglob("*.md")))]


@cache
def text_of(page: Path) -> str:
    """The page without its blocks of code."""
    return CODE.sub("", page.read_text())


def anchor_of(heading: str) -> str:
    """The name that a heading has in a link."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


@cache
def anchors(page: Path) -> set[str]:
    """The names of all headings of a page."""
    return {anchor_of(one) for one in re.findall(r"^#+ (.*)$", text_of(page), re.M)}


def dead_links(page: Path) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    for link in LINK.findall(text_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield f"{page.relative_to(ROOT)}: {link}"


def test_docs__links_lead_somewhere() -> None:
    assert [link for page in pages() for link in dead_links(page)] == []


def test_docs__each_page_says_first_for_whom_it_is() -> None:
    for page in sorted(DOCS.glob("*.md")):
        assert page.read_text().split("\n\n")[1].startswith("For "), page.name


def test_docs__the_map_has_every_page() -> None:
    linked = set(LINK.findall(text_of(DOCS / "README.md")))
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} <= {
        link.partition("#")[0] for link in linked
    }


# Commands that need files which are not in the wheel.
MODULE = re.compile(r"python -m (examples|bench|tests)\b")
OF_CHECKOUT = re.compile(rf"examples/|{MODULE.pattern}|\bmake [a-z]|tests/\w+/\w+\.sh")
MARK = re.compile(r"\b(checkout|clone|in the repository|not in the wheel)\b")
# For those who have a checkout.
DEVELOPERS = {"CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "README.md"}
OPERATORS = {"DEPLOY.md", "OPERATING.md", "TRACING.md", "DIAGNOSIS.md", "REPORT.md", "LIVE.md"}


def test_docs__operators_need_no_checkout_for_a_block_of_commands() -> None:
    for name in sorted(OPERATORS):
        for block in CODE.findall((DOCS / name).read_text()):
            assert not OF_CHECKOUT.search(block), f"{name}: {block}"


def test_docs__operators_need_no_file_of_the_repository_for_a_command_of_weft() -> None:
    for name in sorted(OPERATORS):
        for command in re.findall(r"`(weft [^`]*)`", (DOCS / name).read_text()):
            assert not re.search(r"\b(examples|bench|tests)/|\.\./", command), f"{name}: {command}"


def test_docs__the_map_says_which_links_need_the_repository() -> None:
    head = (DOCS / "README.md").read_text().partition("\n| ")[0]
    assert "files of the repository" in head
    assert {f"{one}.md" for one in re.findall(r"[A-Z]{4,}", head)} == OPERATORS


def test_docs__sections_say_that_their_commands_need_the_checkout() -> None:
    for page in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))):
        if page.parent == DOCS and page.name in DEVELOPERS:
            continue
        text = page.read_text()
        head, *sections = re.split(r"^## ", text, flags=re.M)
        if page.name == "README.md":
            head += next(one for one in sections if one.startswith("Install"))
        for section in sections:
            for block in CODE.findall(section):
                said = MARK.search(section) or MARK.search(head)
                assert said or not OF_CHECKOUT.search(block), f"{page.name}: {block}"


def test_docs__pages_say_once_what_is_not_in_the_wheel() -> None:
    for page in sorted(DOCS.glob("*.md")):
        if page.name not in DEVELOPERS and MODULE.search(page.read_text()):
            assert MARK.search(page.read_text()), page.name
