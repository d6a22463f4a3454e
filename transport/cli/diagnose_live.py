"""`weft diagnose --live`: follows a running job on this host, and judges it or all hosts."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import click

from transport.cli import INTERRUPTED
from transport.cli.http_options import access_of, address
from transport.cli.known_routes import known_routes
from transport.cli.output import unwritten
from transport.cli.packages import TRACES, need_packages
from transport.diagnose import report
from transport.diagnose.live import otlp, share as files
from transport.diagnose.live.action import Action
from transport.diagnose.live.agent import Agent
from transport.diagnose.live.apart import Apart
from transport.diagnose.live.claim import Claim
from transport.diagnose.live.collector import Collector
from transport.diagnose.live.follow import Follower
from transport.diagnose.live.host import Host
from transport.diagnose.live.incidents import Event
from transport.diagnose.live.operations import OPERATIONS_MAX
from transport.diagnose.live.pauses import Pauses
from transport.diagnose.live.sources import Gpus, Interfaces, KernelLog, Stacks
from transport.diagnose.live.summary import Summary
from transport.diagnose.live.vanished import Vanished
from transport.diagnose.live.verdicts import append, reported
from transport.diagnose.settings import Settings
from transport.ground import created
from transport.ground.text import printable
from transport.live.signals import Signals
from transport.plan.routes import Routes
from transport.trace.store import TraceExtraError

STALE_INTERVALS = 4  # a host's file that did not change for this many intervals is stale
STALE_S_MIN = 10.0
# For this long, a finding that another collector has reported is not acted on again, unless its end
# was reported.
REPORTED_NS = 3_600_000_000_000
NUMBERS_MAX = 20  # incidents that the last line names
NOTHING_JUDGED = 2  # exit status if no host has been judged
SERVING = ("prometheus_client", "tornado")  # packages that --listen needs
NICE = 10  # niceness of this process: ranks of the job on its core run first


def run(folder: Path | None, json_path: str | None, given: dict[str, Any]) -> int:
    """Runs until a signal, or for --count intervals; returns the exit status."""
    check(given)
    where = _folder(folder, given)
    judges = given["share"] is None or given["collect"]
    routes = known_routes(where, given["routes_file"], given["plan_file"]) if judges else None
    if given["share"] is not None:
        _made(given["share"])
    with _output(json_path) as out:
        live = Live(where, routes, given, out)
        if judges and routes is None:
            live.say("note: without --routes no link can be named, only NICs and pairs of ranks")
        try:
            return live.run(given["count"], given["interval_s"])
        except TraceExtraError as error:
            raise click.ClickException(str(error)) from None


def check(given: dict[str, Any]) -> None:
    """Refuses options that contradict each other."""
    if given["collect"] and given["share"] is None:
        raise click.UsageError("--collect needs --share: give the folder that all hosts see")
    if given["act"] and given["on_finding"] is None:
        raise click.UsageError("--act needs --on-finding: give the command to run")
    if given["on_finding"] is not None and not given["on_finding"].strip():
        raise click.UsageError("--on-finding: the command is empty: give one")
    sending = otlp.PACKAGES if given.get("otlp") is not None else ()
    serving = SERVING if given.get("listen") is not None else ()
    need_packages("weft diagnose --live", TRACES, *serving, *sending)
    if given.get("otlp") is not None:
        try:
            otlp.check(given["otlp"])
        except otlp.OtlpError as error:
            raise click.UsageError(str(error)) from None
    judges = given["share"] is None or given["collect"]
    for name in ("on_finding", "listen", "otlp", "routes_file", "plan_file"):
        if given[name] is not None and not judges:
            option = name.removesuffix("_file").replace("_", "-")
            raise click.UsageError(f"--{option} is for the host that judges: add --collect")


def _folder(folder: Path | None, given: dict[str, Any]) -> Path | None:
    """The folder of traces. None: this host has none and only judges others (--collect)."""
    named = folder if folder is not None else os.environ.get("WEFT_TRACE")
    return None if not named and given["collect"] else folder_of(named)


def folder_of(named: Path | str | None) -> Path:
    """The folder of a job that runs or will run; UsageError if there can be none."""
    if not named:
        raise click.UsageError("Missing argument 'DIR': give it, or set WEFT_TRACE")
    where = Path(named)
    # The job may start later, and then makes the last component of the folder itself.
    if not is_folder(where) and not is_folder(where.absolute().parent):
        raise click.UsageError(
            f"{where} is not a folder, and there is no {where.parent}: give the folder of traces"
        )
    return where


def is_folder(path: Path) -> bool:
    """Whether it is a folder that can be seen; unlike Path.is_dir(), False if the disk fails."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _made(share: Path) -> None:
    if is_folder(share):
        return
    if os.path.exists(share):
        raise click.UsageError(f"--share: {share} is not a folder")
    try:
        share.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--share: cannot make {share}: {error.strerror}") from None
    click.echo(f"weft: note: made the folder {share}, which all hosts must see", err=True)


@contextlib.contextmanager
def _output(json_path: str | None) -> Iterator[TextIO | None]:
    if json_path is None or json_path == "-":
        yield sys.stdout if json_path == "-" else None
        return
    try:
        with created.open_text(json_path) as out:
            yield out
    except OSError as error:
        raise unwritten(json_path, error) from None


def _export(url: str, interval_s: float) -> otlp.Export:
    try:
        return otlp.Export(url, interval_s)
    except otlp.OtlpError as error:
        raise click.ClickException(str(error)) from None


def counted(told: Mapping[int, str], unrepeated: int) -> str:
    """How many findings and suspicions there were, and of which incidents.

    told: incident -> suspicion or finding. unrepeated: suspicions that were not printed.
    """
    parts = []
    for what in ("finding", "suspicion"):
        numbers = [str(number) for number, last in told.items() if last == what]
        if numbers:
            named = ", ".join(numbers[:NUMBERS_MAX]) + (", ..." if numbers[NUMBERS_MAX:] else "")
            of = f"incident{'s' * (len(numbers) > 1)} {named}"
            parts.append(f"{len(numbers)} {what}{'s' * (len(numbers) > 1)} ({of})")
    if "finding" not in told.values():
        parts.insert(0, "no findings")
    if unrepeated:
        parts.append(f"{unrepeated} suspicion{'s' * (unrepeated > 1)} that did not repeat")
    return ", ".join(parts)


class Live:
    """A run of `weft diagnose --live`. out: where verdicts go as JSON; None: they are printed."""

    def __init__(
        self, folder: Path | None, routes: Routes | None, given: dict[str, Any], out: TextIO | None
    ) -> None:
        self.folder = str(folder or "DIR")
        self.share: Path | None = given["share"]
        self.out = out
        window_ns = round(given["window_s"] * 1e9)
        own = "" if self.share is None else socket.gethostname()
        self.agent, self.tag, self.followed = None, "", False
        self.vanished = Vanished()
        if folder is not None:
            self.tag = files.tag_of(folder)
            sources = (
                ("ethtool", Interfaces()),
                ("NVML", Gpus()),
                ("the kernel log", KernelLog()),
                ("py-spy", Stacks()),
            )
            host = Host([Apart(name, source) for name, source in sources])
            summary = Summary(windows=given["iterations"], window_ns=window_ns)
            self.agent = Agent(Follower(folder, window_ns, own, simulated=False), summary, host)
        self.collector, self.files, self.claim = None, None, None
        if self.share is None or given["collect"]:
            pauses = Pauses(round(given["patience_s"] * 1e9))
            self.collector = Collector(Settings(routes=routes), given["job"], pauses)
        if self.share is not None and given["collect"]:
            stale_s = max(STALE_INTERVALS * given["interval_s"], STALE_S_MIN)
            self.files = files.Share(self.share, stale_s)
            self.claim = Claim(self.share, stale_s)
        self.action = None
        if given["on_finding"] is not None:
            self.action = Action(given["on_finding"], given["act"], given["action_s"])
        self.listen = None if given["listen"] is None else address(given["listen"])
        files_of_access = ("token_file", "tls_cert", "tls_key")
        if self.listen is None and any(given.get(name) is not None for name in files_of_access):
            raise click.UsageError("--token-file, --tls-cert and --tls-key need --listen: give it")
        self.who = access_of(*(given.get(name) for name in files_of_access))
        self.export = None
        if given.get("otlp") is not None and self.collector is not None:
            self.export = _export(given["otlp"], given["interval_s"])
            self.collector.operations_max = OPERATIONS_MAX
            if self.export.warning:
                self.say(f"note: {self.export.warning}")
        self._problems: dict[str, str] = {}
        self._told: dict[int, str] = {}  # incident -> suspicion or finding, as last printed
        self._acted = False  # whether this collector acted in the last interval

    def run(self, count: int | None, interval_s: float) -> int:
        os.nice(NICE)
        done = 0
        with Signals((signal.SIGINT, signal.SIGTERM)) as signals, self._served():
            try:
                while not signals.came:
                    began = time.monotonic()
                    self.step()
                    done += 1
                    if count is not None and done >= count:
                        break
                    left = interval_s - (time.monotonic() - began)
                    select.select([signals.wakes], [], [], max(left, 0.01))
                    signals.clear()
            finally:
                if self.action is not None:
                    self._end_commands(self.action, lambda: bool(signals.came))
                if self.claim is not None:
                    self.claim.close()
                if self.export is not None and self.collector is not None:
                    self.export.close(self.collector.incidents.values())
                    self._problem("otlp", self.export.problem)
        self._say_end()
        if signals.came and signals.came[0] == signal.SIGINT:
            return INTERRUPTED
        if self.collector is None:
            return 0 if self.followed else NOTHING_JUDGED
        if not self.collector.judged or self._only_gone:
            return NOTHING_JUDGED
        return 1 if self.collector.found else 0

    def _end_commands(self, action: Action, hurries: Callable[[], bool]) -> None:
        """Waits for running --on-finding commands, until a signal comes or they time out."""
        if action.running and not hurries():
            self.say(
                f"waiting up to {action.timeout_s:g} s for commands that still run; Ctrl-C "
                "kills them"
            )
        self.say_all(action.close(action.timeout_s, hurries))

    def _say_end(self) -> None:
        """Prints how much was judged, and how many findings there were."""
        if self.collector is None:
            if not self.followed:
                self.say(f"no process of a running job wrote a trace to {self.folder}")
            return
        what = counted(self._told, self.collector.unrepeated)
        latest = self.collector.latest
        if self._only_gone:
            self.say(
                f"no process of a job runs: those whose traces are in {self.folder} were killed or "
                "crashed, as the traces have no end and grow no more (or they hang in another "
                f"container): weft diagnose {self.folder} judges what they wrote"
            )
        elif not self.collector.judged:
            self.say("nothing was judged: no process of a running job has written a trace")
        elif latest is None:
            self.say(f"{what}: the job has ended")
        else:
            self.say(f"{what}: {report.looked_at(latest, live=True)}")

    @property
    def _only_gone(self) -> bool:
        """Whether this host alone is judged, and only traces of killed processes are there."""
        found = self.collector is not None and self.collector.found
        return self.share is None and self.vanished.all_gone and not found

    def step(self) -> None:
        """One interval: reads traces, writes the summary, judges all summaries, reports changes."""
        mine = self._read()
        if self.share is not None and not is_folder(self.share):
            # The share is not created again: if its file system was unmounted, that would fill the
            # host's own disk.
            gone = f"{self.share} is gone, or cannot be read: no host is judged until it is back"
            self._problem("share", gone)
            return
        self._problem("share", "")
        if mine is not None:
            self.vanished.step(mine.processes, mine.read_ns)
        self.followed |= mine is not None and bool(mine.processes)
        if mine is not None and self.share is not None:
            share = self.share
            self._written("a summary", lambda: files.write(share, mine, self.tag))
        said = [] if mine is None else [mine]
        if self.collector is None:
            self.say_all([f"note: {line}" for one in said for line in one.notes])
            if not self.followed and self.agent is not None and self.agent.sequence == 1:
                self.say(f"note: {self._why_nothing()}")
            return
        if self.claim is not None:
            self.say_all([f"note: {line}" for line in self.claim.step()])
        if self.files is not None:
            said, lines = self.files.read()
            self.say_all([f"note: {line}" for line in lines])
        events = self.collector.step(said)
        if self.collector.latest is None and self.collector.intervals == 1:
            self.say(f"note: {self._why_nothing()}")
        self.say_all([f"note: {line}" for line in self.collector.notes])
        for event in events:
            self._tell(event)
        self._act(events)
        if self.action is not None:
            self.say_all(self.action.poll())
        if self.export is not None:
            self._problem("otlp", self.export.problem)

    def _act(self, events: list[Event]) -> None:
        """Writes verdicts and runs commands, unless another collector does it for the --share."""
        if not self.acts:
            self._acted = False
            if self.export is not None:
                self.export.rest()
            return
        if not self._acted:
            events = [*self._taken_over(events), *events]
            self._acted = True
        if self.share is not None:
            share, all_of = self.share, events
            self._written("verdicts", lambda: append(share, all_of))
        if self.action is not None:
            for event in events:
                self.say_all(self.action.tell(event))
        if self.export is not None and self.collector is not None:
            self.export.step(self.collector, events)

    def _taken_over(self, events: list[Event]) -> list[Event]:
        """Open findings, reported as certain, that no collector has written to the verdicts.

        They became certain after the previous collector had stopped and before this one took over.
        """
        assert self.collector is not None
        told = {event.incident.number for event in events if event.what == "finding"}
        left = {
            key: one
            for key, one in self.collector.incidents.items()
            if one.told_certain and one.number not in told
        }
        if not left or self.share is None:
            return []
        known = reported(self.share, time.time_ns() - REPORTED_NS)
        return [Event("finding", one) for key, one in left.items() if key not in known]

    def _why_nothing(self) -> str:
        """Why the first interval had nothing to judge."""
        if self.collector is not None and self.share is not None:
            return f"no host has written traces of a running job to {self.share} yet: waiting"
        of_simulations = 0 if self.agent is None else self.agent.follower.simulations
        over = 0 if self.agent is None else self.agent.over
        if over or of_simulations:
            what = f"{over} traces in {self.folder} have ended"
            if of_simulations:
                what = f"{of_simulations} traces in {self.folder} are of a simulation"
            return (
                f"{what}, so they are not judged again (weft diagnose {self.folder} does that): "
                "waiting for a running job"
            )
        if not is_folder(Path(self.folder)):
            return f"there is no folder {self.folder} yet: waiting for a job that makes it"
        return f"there are no traces in {self.folder} yet: waiting for them"

    @property
    def acts(self) -> bool:
        """Whether this collector writes verdicts and runs commands: one does for each --share."""
        return self.claim is None or self.claim.holds

    def _read(self) -> files.HostFile | None:
        """The summary by the agent of this host; None: there is no agent, or it failed."""
        if self.agent is None:
            return None
        try:
            mine = self.agent.step()
        except TraceExtraError:
            raise
        # A damaged trace can raise any exception: diagnosis continues without this host.
        except Exception as error:
            self._problem("agent", f"cannot read traces: {type(error).__name__}: {error}")
            return None
        self._problem("agent", "")
        return mine

    def _tell(self, event: Event) -> None:
        one, number = event.incident.finding, event.incident.number
        if event.what != "ended":
            self._told[number] = event.what
        if self.out is not None:
            self.out.write(json.dumps(event.as_json()) + "\n")
            self.out.flush()
        elif event.what == "ended":
            lasted = report.when(one.from_ns, one.to_ns)
            click.echo(f"incident {number} has ended: {one.kind}, {one.place.name}; seen {lasted}")
        else:
            lines = report.lines_of(one, self.folder)
            click.echo("\n".join([f"incident {number}: {lines[0]}", *lines[1:]]))

    def _written(self, what: str, write: Callable[[], object]) -> None:
        """Writes into the --share folder. If that begins to fail, prints a line and continues."""
        try:
            write()
        except OSError as error:
            self._problem(what, f"cannot write {what} into {self.share}: {error.strerror or error}")
        else:
            self._problem(what, "")

    def _problem(self, what: str, line: str) -> None:
        """Prints a problem when it begins or changes; an empty line ends it."""
        if line and line != self._problems.get(what):
            self.say(f"note: {line}")
        self._problems[what] = line

    def say_all(self, lines: list[str]) -> None:
        for line in lines:
            self.say(line)

    def say(self, line: str) -> None:
        """Says a line on stderr."""
        click.echo("weft: " + printable(" ".join(line.split())), err=True)

    @contextlib.contextmanager
    def _served(self) -> Iterator[None]:
        """Serves verdicts to Prometheus, if --listen is given."""
        if self.listen is None or self.collector is None:
            yield
            return
        from transport.diagnose.live.metrics import Verdicts
        from transport.live.http import served

        host, port = self.listen
        with contextlib.ExitStack() as stack:
            try:
                verdicts = Verdicts(self.collector)
                at = stack.enter_context(served(verdicts, host, port, self.who))
            except OSError as error:
                raise click.ClickException(
                    f"cannot listen at {host}:{port}: {error.strerror or error}"
                ) from None
            for warning in self.who.warnings(host):
                self.say(warning)
            self.say(f"serving {self.who.scheme}://{host}:{at}/metrics")
            yield
