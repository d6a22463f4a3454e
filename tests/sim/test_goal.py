"""Tests GOAL schedules: the resulting transfers, and one-line errors for wrong schedules."""

from pathlib import Path

import pytest

from tests.sim.support import scenario
from transport.sim import ScenarioError, goal

PING_PONG = """
num_ranks 2
rank 0 {
l1: calc 100
l2: send 10b to 1 tag 5 cpu 0 nic 0
l3: recv 20b from 1 tag 6
l4: calc 50 cpu 1
l5: send 30b to 1 tag 7
l2 requires l1
l4 requires l3
l5 requires l4
l5 requires l2
}
rank 1 {   // a comment
/* another,
   over lines */
l1: recv 10b from 0 tag 5
l2: send 20b to 0 tag 6
l3: recv 30b from 0 tag 7
l2 requires l1
}
"""


def test_goal__a_ping_pong() -> None:
    job = goal.job_of(goal.parse(PING_PONG), ns_per_calc=2.0)
    assert job.transfers["bytes"].tolist() == [10, 30, 20]
    assert job.transfers["from"].tolist() == [0, 0, 1]
    assert job.transfers["start_ns"].tolist() == [200, 100, 0]
    # The third message waits for the answer plus 100 ns of computation, and for the first message.
    found = {(int(b), int(a)): int(d) for b, a, d in job.dependencies}
    assert found == {(0, 2): 0, (2, 1): 100, (0, 1): 0}


def test_goal__what_has_begun_is_enough_for_irequires() -> None:
    text = """num_ranks 3
rank 0 {
a: recv 1b from 1 tag 1
c: calc 1000
s: send 5b to 2 tag 2
c requires a
s irequires c
}
rank 1 {
send 1b to 0 tag 1
}
rank 2 {
recv 5b from 0 tag 2
}
"""
    job = goal.job_of(goal.parse(text))
    assert [tuple(map(int, one)) for one in job.dependencies] == [(1, 0, 0)]


def test_goal__messages_match_in_order_and_the_last_is_enough() -> None:
    sends = "\n".join("send 8b to 1 tag 3" for _ in range(50))
    recvs = "\n".join(f"r{one}: recv 8b from 0 tag 3" for one in range(50))
    chain = "\n".join(f"r{one} requires r{one - 1}" for one in range(1, 50))
    text = f"num_ranks 2\nrank 0 {{\n{sends}\nrecv 1b from 1\n}}\nrank 1 {{\n{recvs}\n{chain}\n"
    text += "s: send 1b to 0\ns requires r49\n}\n"
    job = goal.job_of(goal.parse(text))
    assert [(int(b), int(a)) for b, a, _ in job.dependencies] == [(49, 50)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no num_ranks"),
        ("num_ranks 1\n", "line 1: num_ranks 1"),
        ("rank 0 {\n}\n", "line 1: rank 0: num_ranks is 0"),
        ("num_ranks 2\nrank 0 {\n", "close it"),
        ("num_ranks 2\nrank 0 {\nsend 1b from 1\n}\n", "line 3: send needs 'to' before"),
        ("num_ranks 2\nrank 0 {\nsend 1 to 1\n}\n", "line 3: 'send 1 to 1': expected send"),
        ("num_ranks 2\nrank 0 {\nrecv 1b from -1\n}\n", "line 3: wildcards"),
        ("num_ranks 2\nrank 0 {\nsend 1099511627777b to 1\n}\n", "line 3: 1099511627777: at most"),
        (f"num_ranks 2\nrank 0 {{\nsend {'9' * 5_000}b to 1\n}}\n", "line 3: 9{20}...: at most"),
        (f"num_ranks {'9' * 5_000}\n", "line 1: 9{20}...: at most 65,536"),
        (f"num_ranks 2\nrank 0 {{\ncalc {'9' * 30}\n}}\n", "line 3: 9{20}...: at most"),
        (
            "num_ranks 2\nrank 0 {\na: calc 99999999999999999\nb: send 8b to 1\nb requires a\n}\n"
            "rank 1 {\nrecv 8b from 0\n}\n",
            "line 4: the operations before it take more than",
        ),
        ("num_ranks 2\nrank 0 {\nsend 1b to 2\n}\n", "line 3: rank 2"),
        ("num_ranks 2\nrank 0 {\nsend 1b to 0\n}\n", "line 3: rank 0 sends to itself"),
        ("num_ranks 2\nrank 0 {\nsend 1b to 1\n}\n", "send without a recv"),
        ("num_ranks 2\nrank 0 {\nrecv 1b from 1\n}\n", "line 3: recv without a send"),
        ("num_ranks 2\nrank 0 {\na: calc 1\na requires b\n}\n", "line 4: no operation"),
        (
            "num_ranks 2\nrank 0 {\na: calc 1\na: calc 1\n}\n",
            "line 4: operation a is defined twice",
        ),
        (
            "num_ranks 2\nrank 0 {\na: calc 1\nb: calc 1\na requires b\nb requires a\n}\n",
            "line 3: rank 0's operations require each other",
        ),
        (
            "num_ranks 2\nrank 0 {\nsend 9b to 1\n}\nrank 1 {\nrecv 1b from 0\n}\n",
            "line 6: the message has 9 bytes",
        ),
    ],
)
def test_goal__a_wrong_schedule_is_told_by_its_line(text: str, said: str) -> None:
    with pytest.raises(goal.GoalError, match=said):
        goal.job_of(goal.parse(text))


def test_goal__a_scenario_reads_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.goal").write_text(PING_PONG)
    rest = '[[workload]]\npattern = "goal"\nfile = "a.goal"\nhosts = [3, 1]\n'
    own = scenario("hosts = 4", rest, tmp_path).check().work
    assert own.transfers["from"].tolist() == [3, 3, 1]
    (tmp_path / "a.goal").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match=r"test\.toml:5: workload\.0\.file: .*binary"):
        scenario("hosts = 4", rest, tmp_path).check()
