"""Tests the UDP port with which `weft doctor --peer` probes the network beside weft's own paths."""

from __future__ import annotations

import socket
import threading

from tests.host.sample import TOKEN
from tests.waiting import PATIENCE_S
from transport.host.two_hosts.datagrams import (
    ANSWER,
    ASK,
    ASK_BYTES_MIN,
    BURST,
    HEAD,
    MAGIC,
    TRAIN,
    UNANSWERED_MAX,
    ProbePort,
)


def test_probe_port__measures_the_other_one() -> None:
    with (
        ProbePort("127.0.0.1", range(0), TOKEN) as near,
        ProbePort("127.0.0.1", range(0), TOKEN) as far,
    ):
        found = near.probe("127.0.0.1", far.port, TOKEN, 9_000)
        assert found.mtu_bytes == 9_000
        assert found.carried_bytes == 9_000
        assert found.answered > 0
        again = near.probe("127.0.0.1", far.port, TOKEN, 9_000)
        assert again.arrived <= again.sent
        wrong = near.probe("127.0.0.1", far.port, bytes(16), 9_000)
        assert (wrong.answered, wrong.carried_bytes) == (0, 0)


def test_probe_port__answers_nothing_without_the_token_and_no_more_than_it_gets() -> None:
    with (
        ProbePort("127.0.0.1", range(0), TOKEN) as port,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker,
    ):
        asker.settimeout(30)
        asker.connect(("127.0.0.1", port.port))
        head = (MAGIC, ASK, TRAIN, 1)
        rest = (7, 0, 0, 0, 0)
        right = HEAD.pack(*head, TOKEN, *rest)
        asker.send(b"")
        asker.send(bytes(2_000))
        asker.send(HEAD.pack(*head, bytes(16), *rest).ljust(1_000, b"\0"))
        asker.send(right)  # shorter than an answer may be
        asker.send(HEAD.pack(MAGIC, ASK, 99, 1, TOKEN, *rest).ljust(1_000, b"\0"))
        asker.send(right.ljust(ASK_BYTES_MIN, b"\0"))
        answer = asker.recv(9_000)  # the only one: packets of one socket come in order here
        assert len(answer) <= ASK_BYTES_MIN
        assert HEAD.unpack(answer)[7:9] == (1, ASK_BYTES_MIN)  # the first that counted


def test_probe_port__what_a_stateful_firewall_drops_at_first_counts_nowhere() -> None:
    """The other end is a fake: it hears nothing until three probes have come."""
    dropped: list[int] = []
    with (
        ProbePort("127.0.0.1", range(0), TOKEN) as near,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as behind,
    ):
        behind.bind(("127.0.0.1", 0))
        behind.settimeout(PATIENCE_S)

        def answer() -> None:
            while len(data := behind.recvfrom(9_000)[0]) >= HEAD.size:
                magic, _, train, test, token, number, sent, *_ = HEAD.unpack_from(data)
                if len(dropped) < 3:
                    dropped.append(train)
                    continue
                about = (magic, ANSWER, train, test, token, number, sent)
                head = HEAD.pack(*about, 1, len(data), 0)
                behind.sendto(head, ("127.0.0.1", near.port))

        thread = threading.Thread(target=answer)
        thread.start()
        found = near.probe("127.0.0.1", behind.getsockname()[1], TOKEN, 1_500)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.sendto(b"end", behind.getsockname())
        thread.join()
    assert found.answered > 0
    assert TRAIN not in dropped


def test_probe_port__ends_early_if_the_test_does_not_go_on() -> None:
    with (
        ProbePort("127.0.0.1", range(0), TOKEN) as near,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent,
    ):
        silent.bind(("127.0.0.1", 0))
        asked: list[bool] = []

        def goes_on() -> bool:
            asked.append(True)
            return False

        found = near.probe("127.0.0.1", silent.getsockname()[1], TOKEN, 1_500, goes_on)
        assert (found.answered, found.carried_bytes) == (0, 0)
        assert found.sent <= UNANSWERED_MAX + BURST  # it waited once
        assert asked
