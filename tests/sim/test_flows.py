"""Lists of flows: CSV files and connection matrices of htsim."""

from pathlib import Path

import pytest

from transport.sim import Scenario, ScenarioError, run

from .support import needs_fabric, scenario

NETWORK = "hosts = 8\nhosts_per_leaf = 4\nspines = 2"
CSV = """from,to,bytes,start_ns,stream
0,1,1000,0,7
0,1,2000,5000,7
2,3,3000,0,8
"""
MATRIX = """# two steps
Nodes 8
Connections 4
Triggers 2
0->1 id 1 start 2000000 size 10000 recv_done_trigger 1
1->2 id 2 trigger 1 size 20000 send_done_trigger 2
1->3 id 3 start 0 size 30000 send_done_trigger 2
1->4 id 4 trigger 2 size 5000
trigger id 1 oneshot
trigger id 2 barrier count 2
"""


def work(folder: Path, name: str, text: str, more: str = "") -> Scenario:
    (folder / name).write_text(text)
    table = f'[[workload]]\npattern = "flows"\nfile = "{name}"\n{more}'
    return scenario(NETWORK, table, folder)


def test_flows__csv(tmp_path: Path) -> None:
    made = work(tmp_path, "flows.csv", CSV, "start_ns = 100\n").work.transfers
    assert made["bytes"].tolist() == [1_000, 2_000, 3_000]
    assert made["start_ns"].tolist() == [100, 5_100, 100]
    assert made["stream"][0] == made["stream"][1]


def test_flows__without_a_stream_each_has_a_connection(tmp_path: Path) -> None:
    text = "from, to, bytes\n0,1,1000\n0,1,1000\n"
    made = work(tmp_path, "flows.csv", text).work.transfers
    assert made["stream"][0] != made["stream"][1]


@needs_fabric
def test_flows__a_matrix_runs_in_the_order_of_its_triggers(tmp_path: Path) -> None:
    found = run(work(tmp_path, "steps.cm", MATRIX))
    assert found.finished
    ready, received = found.transfers["ready_ns"], found.transfers["received_ns"]
    assert ready[0] == 2_000
    assert ready[1] == received[0]
    assert ready[3] >= max(received[1], received[2])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "", "column 'from' is missing"),
        ("a.csv", "from,to,size\n", "column 'bytes' is missing"),
        ("a.csv", "from,to,bytes,prio\n", "no column 'prio'"),
        ("a.csv", "from,to,bytes\n0,1\n", "line 2: it must have 3 values"),
        ("a.csv", "from,to,bytes\n0,1,2,3\n", "line 2: it must have 3 values"),
        ("a.csv", "from,to,bytes\n0,1,1e3\n", "bytes is '1e3'"),
        ("a.csv", "from,to,bytes\n0,1,-1\n", "bytes is -1"),
        ("a.csv", "from,to,bytes\n0,8,1\n", "node 8: nodes are 0 to 7"),
        ("a.csv", "from,to,bytes\n3,3,1\n", "node 3 sends to itself"),
        ("a.csv", "from,to,bytes\n", "no flows"),
        ("a.txt", "", "name a .csv file"),
        ("a.cm", "Connections 2\n0->1 start 0 size 1\n", "1 flows, not 2"),
        ("a.cm", "0->1 start 0\n", "needs a size"),
        ("a.cm", "0->1 size 1\n", "either a start or a trigger"),
        ("a.cm", "0->1 start x size 1\n", "give picoseconds"),
        ("a.cm", "0->1 start nan size 1\n", "0 or more picoseconds"),
        ("a.cm", "0->1 start 0 size 1 color 3\n", "'color' is not known"),
        ("a.cm", "0->1 start 0 size\n", "size needs a value"),
        ("a.cm", "0->x start 0 size 1\n", "a node is 'x'"),
        ("a.cm", "0->1 trigger 4 size 1\n", "trigger 4 is not in the file"),
        ("a.cm", "0->1 trigger 4 size 1\ntrigger id 4 multishot\n", "only a oneshot"),
        ("a.cm", "0->1 trigger 4 size 1\ntrigger id 4 barrier count 2\n", "waits for 2 flows of 0"),
        (
            "a.cm",
            "0->1 start 0 size 1 send_done_trigger 4\n2->3 trigger 4 size 1\n"
            "trigger id 4 oneshot\n",
            "line 1 ends at node 0, and this flow begins at node 2",
        ),
        ("a.cm", "Failures 1\n", "failures are not read"),
        ("a.cm", "hello\n", "neither a flow nor a header"),
        ("a.cm", "\x00\n", "neither a flow nor a header"),
    ],
)
def test_flows__a_wrong_file_is_refused_with_its_line(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError, match=said):
        assert work(tmp_path, name, text).work


def test_flows__no_file(tmp_path: Path) -> None:
    for table, said in (("", "name a list"), ('file = "none.csv"\n', "No such file")):
        with pytest.raises(ScenarioError, match=said):
            assert scenario(NETWORK, f'[[workload]]\npattern = "flows"\n{table}', tmp_path).work
