"""`weft doctor`: reports what this host supports and how to fix what it lacks.

The checks use transport.host.probes. They change nothing on the host.
"""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import click

from congestion.registry import RegistryError, survey
from transport import Endpoint, native
from transport.cli import doctor_peer
from transport.cli.output import json_option, write_json
from transport.cli.settings import (
    QUIET,
    SOCKETS,
    Settings,
    of_little_use,
    remedy_of,
    unusable,
    usable,
)
from transport.compiler import linker
from transport.compiler.errors import INSTALL, ToolMissingError
from transport.endpoint import knobs
from transport.errors import OK as OK_STATUS, OutOfDescriptorsError, WeftError
from transport.ground.units import binary_text
from transport.host import probes, rdma
from transport.host.finding import ABSENT, BROKEN, LIMITED, NOT_JUDGED, OK, Finding
from transport.host.uses import Use, findings

LOOPBACK_REMEDY = "if lo is down: ip link set lo up; otherwise see the error"


def uses(settings: Settings) -> list[Finding]:
    """What a process with this environment will use, without the settings that weft refuses."""
    try:
        values = knobs.in_force()
        with Endpoint(**QUIET) as endpoint:
            datapath = endpoint.summary().partition(", devices ")[0]
            engines, paths = re.findall(r"(\d+) (?:engines?|paths?)", datapath)
            addresses = [device.address for device in endpoint.devices]
            use = Use(
                datapath=datapath + (", without the refused settings" if settings.refused else ""),
                devices=[(device.name, device.address) for device in endpoint.devices],
                sockets=int(engines) * int(paths),
                policies={family: state.name for family, state in endpoint.policies.items()},
                control_port=str(values["control_port"]),
                port_base=str(values["port_base"]),
                reverse_path=next(filter(None, map(native.reverse_path_problem, addresses)), ""),
            )
        nics = native.interfaces(values["family"])
        return findings(use, nics, os.environ, rdma.gpu_paths(), rdma.ports())
    except native.NativeMissingError:
        return []  # check_extension says so
    except WeftError:
        said = "no endpoint opens, so devices, ports and policies are unknown"
        return [Finding("uses", NOT_JUDGED, said, "see knobs, below")]


def check_extension() -> Finding:
    try:
        return Finding("extension", OK, str(native.load().__file__))
    except native.NativeMissingError as error:
        return Finding("extension", BROKEN, str(error), "make build")


def check_plugin() -> Finding:
    if not native.PLUGIN_PATH.exists():
        return Finding("plugin", BROKEN, f"not built: {native.PLUGIN_PATH}", "make build")
    complaint = probes.library_loads(native.PLUGIN_PATH)
    if complaint:
        return Finding("plugin", BROKEN, complaint, "make build")
    return Finding("plugin", OK, str(native.PLUGIN_PATH))


def check_knobs(settings: Settings) -> list[Finding]:
    """A finding for each setting that is wrong, or has no effect, and one for all settings."""
    try:
        values = knobs.in_force()
    except native.NativeMissingError:
        return [Finding("knobs", LIMITED, "unknown without the extension", "make build")]
    except knobs.KnobError as error:
        return [Finding("knobs", BROKEN, str(error), "weft knobs lists the settings")]
    meant = settings.meant(values)  # what is left out may be what another setting needs
    others = [*unusable(meant), *of_little_use(meant)]
    wrong = settings.refused + [one for one in others if one.subject not in settings.left_out]
    if settings.error is not None:
        return [*wrong, error_finding(settings.error)]
    changed = [
        f"{row.variable}={knobs.changed(row, values[row.field])}"
        for row in knobs.table()
        if values[row.field] != row.default
    ]
    said = ", ".join(changed) or "all at their defaults"
    if not wrong:
        return [Finding("knobs", OK, said)]
    said = f"{len(wrong)} {'is' if len(wrong) == 1 else 'are'} wrong; the others: {said}"
    state = BROKEN if any(one.state == BROKEN for one in wrong) else LIMITED
    remedy = f"see {'the lines' if len(wrong) > 1 else 'the line'} of {wrong[0].subject}"
    remedy += f" to {wrong[-1].subject}, above" if len(wrong) > 1 else ", above"
    return [*wrong, Finding("knobs", state, said, remedy)]


def error_finding(error: Exception) -> Finding:
    """Why no endpoint opens although no setting is wrong."""
    if isinstance(error, OutOfDescriptorsError):
        # Opening descriptors can fail below the process's limit, if the system's file table is
        # full.
        if check_descriptors().state != BROKEN:
            return Finding("knobs", BROKEN, str(error), "close programs that hold many files")
        said = "not tried: an endpoint needs more descriptors than the limit allows"
        return Finding("knobs", LIMITED, said, "see descriptors, above")
    return Finding("knobs", BROKEN, str(error), remedy_of("", str(error)))


def check_offload() -> Finding:
    complaint = probes.offload_works()
    if complaint:
        remedy = "use Linux 5.0 or later; without GSO every datagram costs a system call"
        if complaint.startswith(probes.NO_LOOPBACK):
            remedy = LOOPBACK_REMEDY
        return Finding("UDP GSO/GRO", LIMITED, complaint, remedy)
    return Finding("UDP GSO/GRO", OK, "one call sends and receives a GSO train over lo")


def check_buffers() -> Finding:
    wanted = 8 << 20
    granted = probes.socket_buffer_bytes(wanted)
    text = f"{binary_text(granted)} granted of {binary_text(wanted)} requested"
    if granted < wanted:
        remedy = f"sysctl -w net.core.rmem_max={wanted} net.core.wmem_max={wanted}"
        return Finding("socket buffers", LIMITED, text, remedy)
    return Finding("socket buffers", OK, text)


def check_ecn() -> Finding:
    complaint = probes.ecn_works()
    if complaint:
        remedy = "set WEFT_ECN=0 to send without ECN"
        if complaint.startswith(probes.NO_LOOPBACK):
            remedy = LOOPBACK_REMEDY
        return Finding("ECN", LIMITED, complaint, remedy)
    return Finding("ECN", OK, "ECN bits can be set and read")


def check_descriptors() -> Finding:
    try:
        status, problem, least, most, limits = native.descriptors()
    except native.NativeMissingError:
        return Finding("descriptors", LIMITED, "unknown without the extension", "make build")
    if status != OK_STATUS:
        return Finding("descriptors", LIMITED, f"unknown: {problem}")
    soft, hard, opened, reserve = limits
    wanted = most + opened + reserve
    # Descriptors kept free for the program: at most a quarter of the hard limit, as in
    # DescriptorState::left_to_program.
    fits = most + opened + min(reserve, hard // 4) <= hard
    text = f"{most} wanted for all paths, soft limit {soft}"
    remedy = f"ulimit -Hn {wanted} (LimitNOFILE={wanted} of a service) for all paths"
    if least + opened + min(reserve, hard // 4) > hard:
        text = f"{least} needed for one path, hard limit {hard}"
        return Finding("descriptors", BROKEN, text, remedy)
    if not fits:
        text = f"{most} wanted for all paths, hard limit {hard}: fewer paths will be opened"
        return Finding("descriptors", LIMITED, text, remedy)
    if soft < hard and wanted > soft:
        text += f", raised at start up to {hard}"
    return Finding("descriptors", OK, text)


def check_cores() -> Finding:
    try:
        cores = native.usable_cores()
    except native.NativeMissingError:
        return Finding("cores", LIMITED, "unknown without the extension", "make build")
    text = f"{cores:g} usable"
    if cores < 2:
        remedy = "give the process two or more cores: engine threads compete with the application"
        return Finding("cores", LIMITED, text, remedy)
    return Finding("cores", OK, text)


def check_nccl() -> Finding:
    path, version = probes.nccl_library()
    if not path:
        return Finding(
            "NCCL", ABSENT, "not found", "pip install nvidia-nccl-cu13, or a torch with CUDA"
        )
    return Finding("NCCL", OK, f"{version} {path}")


def check_cuda() -> Finding:
    count, text = probes.cuda_devices()
    if count == 0:
        return Finding("CUDA", ABSENT, text, "only needed for NCCL and GPU memory")
    return Finding("CUDA", OK, f"{count} devices, driver for CUDA {text}")


def check_nvcc() -> Finding:
    found = shutil.which("nvcc")
    usual = Path("/usr/local/cuda/bin/nvcc")
    if found is None and usual.exists():
        found = str(usual)
    if found is None:
        return Finding("nvcc", ABSENT, "not found", "only needed to build the CUDA kernels")
    return Finding("nvcc", OK, found)


def check_kernels() -> Finding:
    try:
        why = native.why_no_kernels()
    except native.NativeMissingError:
        return Finding("GPU kernels", LIMITED, "unknown without the extension", "make build")
    if why:
        return Finding(
            "GPU kernels", ABSENT, f"left out of the build: {why}", "make build with nvcc"
        )
    return Finding("GPU kernels", OK, "one launch copies many chunks, or adds and copies them")


def check_verbs() -> Finding:
    try:
        values = knobs.in_force()
        named, wanted = values["rdma_library"], values["datapath"] not in SOCKETS
    except (native.NativeMissingError, knobs.KnobError):
        named, wanted = "", False
    if named:
        text = f"WEFT_RDMA_LIBRARY={named} replaces libibverbs"
        return Finding("verbs", LIMITED, text, "unset it to use this host's RDMA devices")
    found = rdma.ports()
    if not found:
        remedy = "for Soft-RoCE: rdma link add rxe0 type rxe netdev eth0"
        remedy = remedy if wanted else "none needed: UDP is used"
        return Finding("verbs", ABSENT, "no RDMA device", remedy)
    try:
        told = [describe_port(port) for port in found]
    except native.NativeMissingError:
        return Finding("verbs", LIMITED, "unknown without the extension", "make build")
    text = "; ".join(text for text, _ in told)
    if not wanted:
        return Finding(
            "verbs", ABSENT, text, "none needed: UDP is used; WEFT_DATAPATH=verbs uses them"
        )
    remedy = next((complaint for _, complaint in told if complaint), "")
    state = LIMITED if all(complaint for _, complaint in told) else OK
    return Finding("verbs", state, text, remedy)


def check_xdp() -> Finding:
    try:
        values = knobs.in_force()
        why = native.why_no_xdp()
        nics = native.interfaces(values["family"])
    except (native.NativeMissingError, knobs.KnobError):
        return Finding("AF_XDP", LIMITED, "unknown without the extension", "make build")
    if why:  # WEFT_DATAPATH=xdp, if it is set, has a line of its own
        what, _, remedy = why.partition("; ")
        return Finding("AF_XDP", ABSENT, what, f"only for WEFT_DATAPATH=xdp: {remedy}")
    usable = [nic.name for nic in nics if not nic.why_not_xdp]
    if not usable:
        text = "the kernel has it, but this host has no NIC to use it on"
        return Finding("AF_XDP", ABSENT, text, "none needed: UDP is used")
    text = f"can be used on {', '.join(usable)}"
    if values["datapath"] == "xdp":
        return Finding("AF_XDP", OK, text)
    return Finding("AF_XDP", ABSENT, text, "none needed: UDP is used; WEFT_DATAPATH=xdp uses it")


def describe_port(port: rdma.Port) -> tuple[str, str]:
    """A port's description, and the reason why weft cannot use it ("" if it can)."""
    text = f"{port.name} {port.link_layer} {port.rate_gbit_per_s:g} Gb/s"
    if port.firmware:
        text += f" firmware {port.firmware}"
    gids = ", ".join(f"@{gid.index} {gid.address} {gid.kind}" for gid in port.gids)
    text += f", GIDs {gids or 'none'}"
    if not port.active:
        return text + ", not active", f"bring {port.name} up (rdma link)"
    if not port.gids:
        return text, f"give the interface of {port.name} an address"
    best = min(port.gids, key=lambda gid: ("v2" not in gid.kind, ":" in gid.address, gid.index))
    modes, complaint = native.rdma_modes(port.device, port.number, best.index)
    text += f", {' '.join(modes) or 'no queue pairs'} with @{best.index}"
    return text, "" if modes else complaint


def check_gpu_memory() -> Finding:
    paired = rdma.pairing(rdma.gpu_paths(), rdma.ports())
    refused = probes.dmabuf_works()
    peer = "loaded" if probes.peer_memory_works() else "not loaded (modprobe nvidia_peermem)"
    text = f"staging through the host; dma-buf: {refused or 'yes'}; peer memory: {peer}"
    near = ", ".join(f"{gpu} to {device}" for gpu, device in paired.items())
    if not near:
        return Finding("GPU memory", ABSENT, text, "none needed: NCCL stages through host memory")
    return Finding("GPU memory", ABSENT, f"{text}; nearest: {near}", "NCCL copies through the host")


def check_policies() -> Finding:
    shipped = len(list(native.POLICY_DIRECTORY.glob("*.so")))
    text, state, remedy = f"{shipped} compiled", OK, ""
    try:
        text += f", numba {metadata.version('numba')} and {linker.find().name} for new ones"
    except metadata.PackageNotFoundError:
        text, state, remedy = f"{text}, no numba for new ones", ABSENT, INSTALL
    except ToolMissingError:
        text, state, remedy = f"{text}, nothing to link new ones with", ABSENT, INSTALL
    try:
        problems = survey().problems
    except RegistryError as error:
        return Finding("policies", BROKEN, str(error), "make build")
    if problems:
        state, remedy = LIMITED, "; ".join(problem.text for problem in problems)
        text += f"; {len(problems)} registered policies that cannot be used by name"
    if shipped == 0:
        state, remedy = BROKEN, "make build"
    return Finding("policies", state, text, remedy)


CAUSES: tuple[Callable[[], Finding], ...] = (
    # What can keep an endpoint from opening is checked before the settings.
    *(check_extension, check_plugin, check_policies, check_descriptors),
)
CHECKS: tuple[Callable[[], Finding], ...] = (
    *(check_offload, check_buffers, check_ecn, check_cores),
    *(check_nccl, check_cuda, check_nvcc, check_kernels, check_verbs, check_xdp),
    check_gpu_memory,
)


def report() -> list[Finding]:
    """Every line about this host: what weft will use, then each check."""
    with usable() as settings:
        # First, as uses() makes weft print warnings from then on, and would print them again here.
        causes = [check() for check in CAUSES]
        used = uses(settings)
        return [*used, *causes, *check_knobs(settings), *(check() for check in CHECKS)]


@click.command("doctor")
@click.option("--serve", is_flag=True, help="Wait for other hosts that run weft doctor --peer.")
@click.option("--port", type=click.IntRange(1, 65_535), help="TCP port of --serve.")
@click.option(
    "--peer", type=doctor_peer.PeerType(), help="Test the network to a host with --serve."
)
@click.option(
    "--all-ports",
    is_flag=True,
    help="With --peer, try every port of WEFT_PORT_BASE and WEFT_CONTROL_PORT in both directions.",
)
@json_option
def command(
    serve: bool,
    port: int | None,
    peer: tuple[str, int] | None,
    all_ports: bool,
    json_path: str | None,
) -> int:
    """Show what weft will use on this host, and say how to fix what the host lacks.

    With --serve on one host and --peer on another, check the network between the two. The exit
    status is 1 if something is broken.
    """
    if serve and (peer is not None or json_path is not None):
        raise click.UsageError("--serve goes neither with --peer nor with --json")
    if port is not None and not serve:
        raise click.UsageError("--port goes with --serve; --peer takes HOST:PORT")
    if all_ports and peer is None:
        raise click.UsageError("--all-ports goes with --peer")
    if serve:
        return doctor_peer.serve(port or 0)
    if peer is not None:
        return doctor_peer.test(peer, json_path, all_ports=all_ports)
    found = report()
    if json_path is not None:
        write_json([asdict(finding) for finding in found], json_path)
    else:
        doctor_peer.show(found)
    return int(any(finding.state == BROKEN for finding in found))
