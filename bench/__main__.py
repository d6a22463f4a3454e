"""`python -m bench NAME`: imports and runs a benchmark."""

import os
import sys
from importlib import import_module
from typing import Any

import click

# Name of a benchmark -> one line of help. The function `command` of bench.NAME runs it.
BENCHES = {
    "all_to_all": "All-to-all over the Python API, counted as in nccl-tests.",
    "beside": "One flow: weft beside every other transport that this machine has.",
    "bidirectional": "Two hosts, one way and both ways at once.",
    "collision": "Flows over several equal paths of a lab, and with one of them slow.",
    "connections": "The 1st to the 4,096th connection of a process: time, memory, speed.",
    "core": "The cost of a segment in the protocol core.",
    "cost": "Cores by thread, CPU time and cache misses a byte, idle cores: weft, TCP, UDP.",
    "cpu": "Core-seconds per GB, both sides, weft and TCP.",
    "diagnose_real": "The diagnosis of real faults in a lab: verdicts.",
    "diagnose": "The diagnosis of simulated faults, beside C4D's rule: right verdicts, alarms.",
    "diagnose_live": "Cost of live diagnosis: the collector of all hosts, and the agent of a host.",
    "fabric": "The simulator beside published figures, and its cost by size.",
    "estimate_collectives": "Estimates of operations against published times of NCCL.",
    "estimate_fit": "How GPUs run kernels, fitted to published runs of training.",
    "estimate_held_out": "Estimates of training steps against published runs, also held-out ones.",
    "estimate_measured": "Estimates of operations against measurements of NCCL.",
    "estimate_monotone": "Whether estimates move the right way: a better network is never slower.",
    "estimate_plans": "The best plans of a search beside published ones, of Calculon and others.",
    "estimate_steps": "Estimates of training steps before they are measured, and their errors.",
    "estimate_simulated": "Estimates of operations against the packet simulator, to 1,024 ranks.",
    "estimate_simulated_steps": "Estimates of training steps against the packet simulator.",
    "estimate_published": "Estimates of training steps against published runs.",
    "failover": "A flow while paths of a lab are cut and restored: time to move and to return.",
    "fairness": "Jain's index of n flows: weft beside weft, weft beside TCP.",
    "fidelity": "The same work in a lab and in the simulator, side by side.",
    "gpu": "GPU memory through weft beside host memory and NCCL; staging beside plain copies.",
    "incast": "N senders to one receiver, optionally with a victim flow.",
    "latency": "Half round trips against TCP_NODELAY.",
    "local": "Two processes of one host: shared memory, weft over the network, TCP.",
    "loss": "A flow over a lab that loses datagrams, against the same flow without loss.",
    "nccl": "NCCL collectives and DDP over weft against NCCL's Socket.",
    "outcast": "One sender to N receivers.",
    "p2p": "Throughput of one connection against TCP.",
    "permutation": "Every host sends to another one.",
    "plan": "A ring over several spines of a lab, with planned ports and without.",
    "plan_c4p": "C4P's four experiments in the simulator: ECMP, planned paths, several paths.",
    "policy": "The cost of a policy call, against the same policy in C.",
    "ring": "Ring all-reduce over the Python API, integers checked exactly.",
    "stages": "The cost of a byte over UDP by stage: the kernel's ways, copies, and weft's.",
    "starved": "Two processes and their spinning threads on two cores, weft and TCP.",
    "strangers": "Connecting to an open listener, without and with strangers: time, load, memory.",
    "step": "Training steps (PyTorch): computation of one GPU, and steps over networks.",
    "trace_cost": "What tracing costs NCCL: all-reduces over weft without and with a trace.",
    "trace_events": "What the calls of NCCL's profiler cost, with a trace.",
    "trace_matrix": "Matrices of a trace of 4,096 processes and 10^8 messages: time, memory.",
    "turnaround": "Time from saving a policy file until it is checked and runs on a live flow.",
    "wan": "Long and impaired paths in an emulated network, weft and TCP.",
    "xdp": "The cost of a datagram through AF_XDP and through UDP sockets, over a veth pair.",
    "verbs": "The cost of a segment and of a path in the verbs datapath, over a fake provider.",
}

# These measure the network between processes, also if these are on one host.
NETWORK = frozenset(
    (
        *("all_to_all", "beside", "bidirectional", "collision", "connections", "cost", "cpu"),
        *("diagnose_live", "diagnose_real", "failover", "fairness", "fidelity", "gpu", "incast"),
        *("latency", "loss", "nccl", "outcast", "p2p", "permutation", "plan", "ring", "starved"),
        *("stages", "step", "strangers", "trace_cost", "turnaround", "wan"),
    )
)

# These commands read recorded results.
TOOLS = {
    "compare": "Two recorded results of one bench: ratios, spread, noise.",
    "render": "A recorded result again: table, CSV, plot, HTML.",
}
INTERRUPTED = 130


class Benches(click.Group):
    """Imports a benchmark only when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(BENCHES | TOOLS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in BENCHES | TOOLS:
            return None
        found = import_module(f"bench.{cmd_name}").command
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Benchmarks"):
            formatter.write_dl(sorted(BENCHES.items()))
        with formatter.section("Results"):
            formatter.write_dl(sorted(TOOLS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # A study has written its partial results by now; other benchmarks have none to write.
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=Benches, context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Microbenchmarks: print tables on a terminal; --json FILE writes the numbers."""
    if ctx.invoked_subcommand in NETWORK:
        os.environ.setdefault("WEFT_LOCAL", "off")


if __name__ == "__main__":
    sys.exit(bench(prog_name="python -m bench"))
