"""Graphs as PyTorch 2.8 prints them, and execution traces of Chakra."""

import json
from pathlib import Path
from typing import Any

from transport.trace.protobuf import data, number, text, varint

# Two gathers of the same weight, one of them hidden; all ranks are in group 0, four in group 1.
STEP = """class GraphModule(torch.nn.Module):
    def forward(self, x: "bf16[4096, 4096]", w: "bf16[512, 4096]"):
         # File: /home/me/step.py:10 in forward, code: g = all_gather_tensor(w, 0, group)
        gather: "bf16[4096, 4096]" = torch.ops._c10d_functional.all_gather_into_tensor.default(w, 8, '0')
        mm: "bf16[4096, 4096]" = torch.ops.aten.mm.default(x, x);  x = None
        wait_tensor: "bf16[4096, 4096]" = torch.ops._c10d_functional.wait_tensor.default(gather);  gather = None
        again: "bf16[4096, 4096]" = torch.ops._c10d_functional.all_gather_into_tensor.default(w, 8, '0');  w = None
        wait_tensor_1: "bf16[4096, 4096]" = torch.ops._c10d_functional.wait_tensor.default(again);  again = None
        scatter: "bf16[1024, 4096]" = torch.ops._c10d_functional.reduce_scatter_tensor.default(mm, 'sum', 4, '1');  mm = None
        wait_tensor_2: "bf16[1024, 4096]" = torch.ops._c10d_functional.wait_tensor.default(scatter);  scatter = None
        return (wait_tensor, wait_tensor_1, wait_tensor_2)
"""  # noqa: E501


def graph(inputs: str, *lines: str) -> str:
    """A graph of these inputs and nodes."""
    body = "".join(f"        {line}\n" for line in lines)
    head = f"class f(torch.nn.Module):\n    def forward(self, {inputs}):\n"
    return f"{head}{body}        return ()\n"


def chakra(*nodes: dict[str, Any]) -> bytes:
    """A trace in Protocol Buffers: id, name, type, needs, us, and attributes of other names."""
    made = [text(1, "1.0.0")]
    for node in nodes:
        body = number(1, node["id"]) + text(2, node.get("name", "node")) + number(3, node["type"])
        body += data(5, b"".join(map(varint, node.get("needs", ()))))
        body += number(7, node.get("us", 0))
        for key, value in node.items():
            if key in ("id", "name", "type", "needs", "us"):
                continue
            one = text(29, value) if isinstance(value, str) else number(9, value)
            body += data(10, text(1, key) + one)
        made.append(body)
    return b"".join(varint(len(one)) + one for one in made)


def chakra_json(*nodes: dict[str, Any]) -> str:
    """The same as the objects that Chakra's jsonizer writes."""
    made: list[dict[str, Any]] = [{"version": "1.0.0"}]
    for node in nodes:
        attributes = [
            {"name": key, ("stringVal" if isinstance(value, str) else "int64Val"): value}
            for key, value in node.items()
            if key not in ("id", "name", "type", "needs", "us")
        ]
        made.append(
            {
                "id": str(node["id"]),
                "name": node.get("name", "node"),
                "type": {4: "COMP_NODE", 5: "COMM_SEND_NODE", 7: "COMM_COLL_NODE"}[node["type"]],
                "dataDeps": [str(one) for one in node.get("needs", ())],
                "durationMicros": str(node.get("us", 0)),
                "attr": attributes,
            }
        )
    return "\n".join(map(json.dumps, made))


# Forward, backward, an AllReduce of its gradients beside more of backward, and the optimizer.
TRAINING: tuple[dict[str, Any], ...] = (
    {"id": 1, "name": "forward", "type": 4, "us": 100},
    {"id": 2, "name": "backward", "type": 4, "us": 200, "needs": [1]},
    {
        "id": 3,
        "name": "reduce",
        "type": 7,
        "needs": [2],
        "comm_type": 0,
        "comm_size": 16 << 20,
        "pg_name": "0",
    },
    {"id": 4, "name": "backward", "type": 4, "us": 50, "needs": [2]},
    {"id": 5, "name": "update", "type": 4, "needs": [3, 4], "num_ops": 10**9, "tensor_size": 1000},
)


def write(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file
