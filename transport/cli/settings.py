"""Finds the settings of this environment that weft cannot use, for `weft run` and `weft doctor`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transport import Endpoint, native
from transport.endpoint import knobs
from transport.errors import OutOfDescriptorsError, WeftError
from transport.ground import created
from transport.host import probes
from transport.host.finding import BROKEN, LIMITED, Finding

# Settings of an endpoint that is opened to look: it warns of no plan, which has a finding.
QUIET = {**probes.BESIDE_A_JOB, "plan": ""}
NAMES = {"WEFT_INTERFACES", "WEFT_RDMA_DEVICES"}
TOO_SHORT = "a secret that nobody can guess has at least"  # native/control/keyring.cc
SOCKETS = {"udp", "xdp"}  # datapaths whose datagrams are UDP, and which use no RDMA device
LISTS = " (weft knobs lists the settings)"


@dataclass(slots=True)
class Settings:
    """The settings that were left out of the environment, and what still keeps weft from opening.

    left_out: variable -> its value. error: not the fault of any one setting; None: an endpoint
    opens.
    """

    refused: list[Finding] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    error: Exception | None = None

    def meant(self, values: Mapping[str, str]) -> dict[str, str]:
        """The values in force, with the text of each knob that was left out."""
        texts = {name.removeprefix("WEFT_").lower(): one for name, one in self.left_out.items()}
        return {name: texts.get(name, value) for name, value in values.items()}


def knob_refusal() -> Exception | None:
    """Why the knobs of this environment cannot be read; None if they can be."""
    try:
        knobs.in_force()
    except knobs.KnobError as error:
        return error
    return None


def refusal() -> Exception | None:
    """Why no endpoint opens in this environment; None if one does, or if there is no extension."""
    try:
        Endpoint(**QUIET, log_level="error").close()
    except native.NativeMissingError:
        return None
    except WeftError as error:
        return error
    return None


Refuses = Callable[[], Exception | None]


@contextmanager
def usable(refuses: Refuses = refusal) -> Iterator[Settings]:
    """Takes all settings that weft refuses out of the environment, until the context ends.

    refuses: what is tried. The environment belongs to the whole process: for one of one thread.
    """
    found = Settings()
    try:
        while (error := refuses()) is not None:
            name = culprit(error, refuses)
            if not name:
                found.error = error
                break
            found.left_out[name] = os.environ.pop(name)
            found.refused.append(refused(name, found.left_out[name], str(error)))
        yield found
    finally:
        os.environ.update(found.left_out)


def culprit(error: Exception, refuses: Refuses) -> str:
    """The variable without which weft complains of something else, or of nothing; "": none."""
    if isinstance(error, OutOfDescriptorsError):
        return ""  # fewer paths would help, but no setting is wrong
    said = str(error)
    given = [name for name in os.environ if name.startswith(("WEFT_", "NCCL_"))]
    # The message names first the setting that it is about.
    for name in sorted(given, key=lambda one: said.find(one) % (len(said) + 1)):
        value = os.environ.pop(name)
        changed = refuses()
        os.environ[name] = value
        if str(changed) != said:
            return name
    return ""


def refused(name: str, value: str, complaint: str) -> Finding:
    """The finding for a setting, from what weft says of it."""
    said = complaint.removeprefix("cannot open an endpoint: ").replace(LISTS, "")
    if name not in said:
        said = f"{name}={value}: {said}"
    return Finding(name, BROKEN, said, remedy_of(name, said, value))


def remedy_of(name: str, complaint: str, value: str = "") -> str:
    """What to do about a setting that weft refuses."""
    if "is not a setting of weft" in complaint:
        meant = re.search(r"did you mean (\w+)\?", complaint)
        instead = f"set {meant[1]} instead" if meant else "weft knobs lists the settings"
        return f"unset {name}: {instead}"
    if name in NAMES and len(value.split()) > 1 and not set(",+") & set(value):
        each = value.split()
        return (
            f"blanks separate no names: {name}={','.join(each)} for {len(each)} devices, "
            f"{name}={'+'.join(each)} for one device over all"
        )
    if "give key=value" in complaint and (example := _example(name)):
        return f"for example {name}={example}; weft knobs {name} says what each key may be"
    if name == "WEFT_SECRET_FILE" and ("No such file" in complaint or TOO_SHORT in complaint):
        return "make one with openssl rand -hex 32, copy it to all hosts: weft docs deploy Start"
    if name == "WEFT_SECRET_FILE":
        return 'give it the owner and the rights of a secret: weft docs operating "A secret"'
    if "no usable" in complaint or "no network interface" in complaint:
        return "bring an interface up and give it an address: ip link set NIC up; ip address"
    if not name.startswith("WEFT_"):
        return f"change or unset {name or 'what it names'}"
    return f"change or unset {name}; weft knobs {name} says what it may be"


def _example(name: str) -> str:
    """The first key of a setting with its default; "" if it has no keys."""
    keys = next((row.keys for row in knobs.table() if row.variable == name), ())
    return f"{keys[0].name}={keys[0].default}" if keys else ""


def unusable(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Settings that an endpoint accepts, and that no rank could use or no part of weft would read.

    `values`: those in force, as `knobs.in_force` returns them. `weft run` refuses these.
    """
    complaints = (
        ("WEFT_POLICY_DIRECTORY", policy_directory_complaint(values["policy_directory"])),
        ("WEFT_TRACE", trace_complaint(values["trace"])),
        ("WEFT_RECORD_FILE", record_complaint(values["record_file"])),
        ("WEFT_RDMA_DEVICES", rdma_devices_complaint(values)),
        ("WEFT_WEIGHTS", weights_complaint(values)),
        ("WEFT_TUNE", rules_complaint(values["tune"])),
    )
    for name, said in complaints:
        if said:
            yield Finding(name, BROKEN, said, f"change or unset {name}: weft run refuses it")


def of_little_use(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Settings that weft accepts and that have no effect, or not the one that was meant."""
    names = os.environ.get("NCCL_SOCKET_IFNAME", "")
    if complaint := probes.unknown_socket_interface(names):
        remedy = "name the NIC as in WEFT_INTERFACES"
        yield Finding("NCCL_SOCKET_IFNAME", LIMITED, complaint, remedy)
    if complaint := plan_complaint(values["plan"]):
        remedy = "make it with weft plan assign, or unset WEFT_PLAN: its paths are not used"
        yield Finding("WEFT_PLAN", LIMITED, f"WEFT_PLAN: {complaint}", remedy)
    if knobs.keys_of(values["rdma"]).get("placement") == "direct" and values["datapath"] in SOCKETS:
        said = "WEFT_RDMA=placement=direct: direct placement has no effect over UDP sockets"
        yield Finding("WEFT_RDMA", LIMITED, said, "set WEFT_DATAPATH=verbs or auto")


def policy_directory_complaint(folder: str) -> str:
    if folder and not os.path.isdir(folder):
        return f"WEFT_POLICY_DIRECTORY={folder}: there is no such folder"
    return ""


def record_complaint(file: str) -> str:
    if not file:
        return ""
    return folder_complaint(f"WEFT_RECORD_FILE={file}", Path(file).absolute().parent)


def rdma_devices_complaint(values: Mapping[str, Any]) -> str:
    if values["rdma_devices"] and values["datapath"] in SOCKETS:
        named = values["rdma_devices"]
        return f"WEFT_RDMA_DEVICES={named} needs WEFT_DATAPATH=verbs or auto"
    return ""


def weights_complaint(values: Mapping[str, Any]) -> str:
    weights = values["weights"]
    if weights and not any("weighted" in values[one] for one in ("path_policy", "traffic_classes")):
        return f"WEFT_WEIGHTS={weights} needs WEFT_PATH_POLICY=weighted: no other policy reads it"
    return ""


def trace_complaint(trace: str) -> str:
    """Why a folder of traces is not there and cannot be made, or may not be written."""
    if not trace:
        return ""
    folder = Path(trace).absolute()
    while not os.path.lexists(folder) and folder.parent != folder:
        folder = folder.parent
    if os.path.isdir(folder) and not os.access(folder, os.X_OK):
        return f"WEFT_TRACE={trace}: this user may not enter {folder}"
    missing = Path(trace).absolute().relative_to(folder).parts
    if len(missing) > 1:
        above = Path(trace).absolute().parent
        return f"WEFT_TRACE={trace}: there is no folder {above}: make it first"
    if not os.path.isdir(folder):
        return f"WEFT_TRACE={trace}: {folder} is not a folder"
    return folder_complaint(f"WEFT_TRACE={trace}", folder)


def folder_complaint(setting: str, folder: Path) -> str:
    """Why no file can be created in the folder of a setting."""
    if os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK):
        return f"{setting}: this user may not write in {folder}"
    if why := created.refusal(folder):
        return f"{setting}: no file can be created in {folder}: {why}"
    return ""


def rules_complaint(file: str) -> str:
    """Why no rank could read a file for WEFT_TUNE: they would all fail to initialize."""
    if not file:
        return ""
    from transport.estimate.tuning import HEAD

    try:
        with open(file, encoding="utf-8") as opened:
            first = opened.readline(len(HEAD) + 100).strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        return f"WEFT_TUNE: cannot read {file}: {reason}"
    return "" if first == HEAD else f"WEFT_TUNE: {file} is no file of weft estimate tune"


def plan_complaint(file: str) -> str:
    """Why connections would not use a plan."""
    if not file:
        return ""
    from transport.plan import planfile

    try:
        planfile.read(Path(file), steers=True)
    except planfile.PlanError as error:
        return str(error)
    return ""
