"""Fuzzes the reader of telemetry pages, and what shows them."""

import os
import random
import struct
from pathlib import Path

from tests.api.support import pair
from tests.fuzz.mutator import fuzz, mutated, number
from transport import telemetry
from transport.live import rates, read
from transport.live.exporter import Exporter
from transport.telemetry.page import HEADER, SECTION

USER = os.geteuid()


def images(folder: Path) -> list[bytes]:
    """Pages of two endpoints with traffic."""
    with pair(telemetry=str(folder), paths=2) as (here, there):
        here.send(b"something")
        there.recv(100)
        return [path.read_bytes() for path in telemetry.pages(folder)]


def damaged(page: bytes, draw: random.Random) -> bytes:
    """Damages the header, the sections, the schema or rows, mostly without moving what follows."""
    data = bytearray(page)
    offset, size = struct.unpack_from("<QQ", page, 64)
    if draw.random() < 0.3:
        schema = mutated(page[offset : offset + size], draw)[:size].ljust(size, b" ")
        data[offset : offset + size] = schema
    for _ in range(draw.choice((1, 2, 8))):
        if draw.random() < 0.5:
            at = 8 * draw.randrange((HEADER.size + 5 * SECTION.size) // 8)
        else:
            at = 8 * draw.randrange(len(data) // 8)
        bits = draw.choice((4, 8))
        data[at : at + bits] = (number(draw) % 2 ** (8 * bits)).to_bytes(bits, "little")
    return bytes(data[: draw.randrange(len(data))] if draw.random() < 0.1 else data)


def test_page__damaged_is_read_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "page"

    def reads(data: bytes) -> None:
        file.write_bytes(data)
        telemetry.read_page(file).realtime_s(0)

    fuzz(images(tmp_path), reads, telemetry.PageError, usual=150, damage=damaged)


def test_page__damaged_is_shown_by_every_reader(tmp_path: Path) -> None:
    """The exporter and the rates accept every page that read_page() accepts."""
    corpus = images(tmp_path)
    folder = tmp_path / "pages"
    folder.mkdir()
    before = read(folder)

    def reads(data: bytes) -> None:
        header = HEADER.unpack_from(data.ljust(HEADER.size, b"\0"))
        pid, start, space = header[4], header[6], header[7]
        file = folder / f"weft-{USER}-{space}-{pid}-{start}-0.page"
        file.write_bytes(data)
        try:
            telemetry.read_page(file)
            rates(before, read(folder))
            Exporter(where=folder).scrape()
        finally:
            file.unlink()

    fuzz(corpus, reads, telemetry.PageError, usual=60, damage=damaged)
