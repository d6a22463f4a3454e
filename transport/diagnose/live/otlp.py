"""Sends incidents, slow collectives and metrics of a diagnosis to a collector of OpenTelemetry.

The packages of the extra `otlp` send it in threads of their own, with bounded queues, so a
collector that does not answer delays no diagnosis.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from transport.diagnose.live.collector import Collector
from transport.diagnose.live.incidents import Event, Incident
from transport.diagnose.live.metrics import COUNTERS, METRICS, Sample, samples
from transport.diagnose.live.operations import Operation
from transport.ground.extras import absent, install

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

FROM_ENVIRONMENT = "env"  # this in place of a URL: only OTEL_EXPORTER_OTLP_* say where
SCOPE = "weft.diagnose"
SERVICE = "weft"
TEXT_MAX = 4_096  # maximum number of characters of an attribute
CLOSE_S = 5.0  # for this long, the end of the command waits for what is still to be sent
LINE_MAX = 400
# The cause in what the exporter logs: the error of a socket, else the answer of the collector.
CAUSES = (
    re.compile(r"\[Errno -?\d+\] ([^\"')]+)"),
    re.compile(r"Transient error (.+?) encountered"),
)
PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


class OtlpError(ValueError):
    """--otlp cannot be used; the text says what to do."""


def check(url: str) -> None:
    """OtlpError if a package is missing, or the URL is none."""
    if absent(PACKAGES):
        raise OtlpError(
            f"--otlp needs the packages of OpenTelemetry: {install('otlp')} (that is, "
            "opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http)"
        )
    if url == FROM_ENVIRONMENT:
        return
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment:
        raise OtlpError(
            f"--otlp {url}: write http://HOST:PORT or https://HOST:PORT of the collector's OTLP "
            f"port for HTTP, as http://127.0.0.1:4318, or {FROM_ENVIRONMENT} for the variables "
            "OTEL_EXPORTER_OTLP_*"
        )


class Export:
    """What is sent about the verdicts of a collector.

    url: of the OTLP receiver, below which are /v1/traces and /v1/metrics; "env": as OTEL_* say.
    interval_s: how often metrics are sent, unless OTEL_METRIC_EXPORT_INTERVAL says so. warning: a
    variable OTEL_* that is not used as it is; empty: none. OtlpError if one is wrong.
    """

    def __init__(self, url: str, interval_s: float) -> None:
        check(url)
        self._spans: dict[int, Span] = {}  # incident -> its span, while it is open
        self._samples: Sequence[Sample] = ()
        self._failures = _Failures()
        self._url = "the collector" if url == FROM_ENVIRONMENT else url
        try:
            self._traces, self._meters = self._providers(url, interval_s)
        except (ValueError, TypeError, OSError) as error:
            raise OtlpError(f"--otlp: a variable OTEL_* cannot be used: {error}") from None
        self.warning = self._failures.taken()
        self._tracer = self._traces.get_tracer(SCOPE)
        meter = self._meters.get_meter(SCOPE)
        for name, text in METRICS.items():
            make = (
                meter.create_observable_counter
                if name in COUNTERS
                else meter.create_observable_gauge
            )
            make(name, [self._observer(name)], description=text)

    def _providers(self, url: str, interval_s: float) -> tuple[TracerProvider, MeterProvider]:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        base = None if url == FROM_ENVIRONMENT else url.rstrip("/")
        resource = _resource()
        own = None if os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") else interval_s * 1e3
        spans = OTLPSpanExporter(endpoint=base and f"{base}/v1/traces")
        metrics = OTLPMetricExporter(endpoint=base and f"{base}/v1/metrics")
        traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._failures.watch(spans, "spans")
        self._failures.watch(metrics, "metrics")
        traces.add_span_processor(BatchSpanProcessor(spans))
        reader = PeriodicExportingMetricReader(metrics, export_interval_millis=own)
        return traces, MeterProvider([reader], resource=resource, shutdown_on_exit=False)

    def _observer(self, name: str) -> Any:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            from opentelemetry.metrics import Observation

            found = [one for one in self._samples if one[0] == name]
            return [Observation(float(value), labels) for _, labels, value in found]

        return observe

    def step(self, collector: Collector, events: Sequence[Event]) -> None:
        """Takes over what an interval found. It sends nothing itself."""
        self._samples = list(samples(collector))
        for event in events:
            self._tell(event)
        for one in collector.operations:
            self._operation(one, len(collector.operations), collector.operations_seen)

    def rest(self) -> None:
        """Sends no metrics until the next step: another collector judges the job."""
        self._samples = ()

    @property
    def problem(self) -> str:
        """What could not be sent, and why; empty: all was sent."""
        return self._failures.text

    def _tell(self, event: Event) -> None:
        """A span for the event, sent at once, in the trace of its incident; at the end of the
        incident, its own span."""
        from opentelemetry.trace import set_span_in_context

        incident = event.incident
        number, finding = incident.number, incident.finding
        if number not in self._spans:
            self._spans[number] = self._tracer.start_span(
                f"incident: {finding.kind}", start_time=finding.from_ns
            )
        context = set_span_in_context(self._spans[number])
        if event.what == "ended":
            self._end(self._spans.pop(number), incident)
            return
        span = self._tracer.start_span(
            f"{event.what}: {finding.kind}", context=context, start_time=finding.from_ns
        )
        span.set_attributes(_attributes(incident))
        span.end(max(finding.to_ns, finding.from_ns))

    def _end(self, span: Span, incident: Incident) -> None:
        span.set_attributes(_attributes(incident))
        span.end(max(incident.last_ns, incident.finding.from_ns))

    def _operation(self, one: Operation, sent: int, of: int) -> None:
        span = self._tracer.start_span(one.function, start_time=one.begin_ns)
        span.set_attributes(
            {
                "weft.operation.function": one.function,
                "weft.operation.communicator": f"{one.comm_id:016x}",
                "weft.operation.sequence": one.sequence,
                "weft.operation.count": one.count,
                "weft.operation.datatype": one.datatype,
                "weft.operation.ranks": one.ranks,
                "weft.operation.last_rank": one.last_rank,
                "weft.operation.waited_ns": one.waited_ns,
                "weft.operation.sent": sent,
                "weft.operation.of": of,
            }
        )
        span.end(one.end_ns)

    def close(self, incidents: Iterable[Incident]) -> None:
        """Sends the spans of incidents that are still open, and what waits, for CLOSE_S at most."""
        for one in incidents:
            if one.number in self._spans:
                self._end(self._spans.pop(one.number), one)
        ends = threading.Thread(target=self._shut_down, name="weft-otlp", daemon=True)
        ends.start()
        ends.join(CLOSE_S)
        if ends.is_alive():
            self._failures.fails("what was left", self._url)
        else:
            self._failures.close()

    def _shut_down(self) -> None:
        self._traces.shutdown()
        self._meters.shutdown(CLOSE_S * 1e3)


def _attributes(incident: Incident) -> dict[str, Any]:
    finding = incident.finding
    made: dict[str, Any] = {
        "weft.incident.number": incident.number,
        "weft.incident.state": incident.state.value,
        "weft.incident.class": finding.kind,
        "weft.incident.certain": incident.certain,
        "weft.incident.place": finding.place.name,
        "weft.incident.place.kind": finding.place.kind,
        "weft.incident.ranks": [rank for rank in finding.place.ranks if rank >= 0],
        "weft.incident.confidence": float(finding.confidence),
        "weft.incident.evidence": finding.evidence,
        "weft.incident.advice": finding.advice,
    }
    if finding.lost_ns is not None:
        made["weft.incident.lost_ns"] = int(finding.lost_ns)
    return {name: one[:TEXT_MAX] if isinstance(one, str) else one for name, one in made.items()}


def _resource() -> Resource:
    """The resource that OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES describe, as far as they
    say; else the service weft on this host."""
    import socket

    from opentelemetry.sdk.resources import Resource

    own = Resource({"host.name": socket.gethostname()})
    with contextlib.suppress(PackageNotFoundError):  # it runs from a checkout
        own = own.merge(Resource({"service.version": version("weft")}))
    named = Resource.create()
    if str(named.attributes.get("service.name", "")).startswith("unknown_service"):
        named = named.merge(Resource({"service.name": SERVICE}))
    return own.merge(named)


class _Failures(logging.Handler):
    """Keeps the reason why an export failed, which OpenTelemetry's packages log from their threads
    again and again."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._failed: set[str] = set()
        self._first = self._why = ""
        self._logger = logging.getLogger("opentelemetry")
        self._logger.addHandler(self)
        self._logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())[:LINE_MAX]
        causes = [found[1] for found in (one.search(text) for one in CAUSES) if found]
        if causes:
            self._why = causes[0]
        elif record.levelno < logging.ERROR or not self._why:  # the errors only say "failed"
            self._why = text

    @property
    def text(self) -> str:
        """The first failure, as long as one kind of data cannot be sent."""
        return self._first if self._failed else ""

    def taken(self) -> str:
        """The last line that was logged; it is not returned again."""
        why, self._why = self._why, ""
        return why

    def watch(self, exporter: Any, what: str) -> None:
        """Makes an exporter note whether its last export failed."""
        export = exporter.export

        def watched(*given: Any, **named: Any) -> Any:
            sent = False
            try:
                result = export(*given, **named)
                sent = result.name == "SUCCESS"
            finally:
                if sent:
                    self._failed.discard(what)
                else:
                    self.fails(what, getattr(exporter, "_endpoint", "the collector"))
            return result

        exporter.export = watched

    def fails(self, what: str, url: str) -> None:
        if not self._failed:
            where = _without_password(url)
            self._first = f"{what} cannot be sent to {where}, the diagnosis goes on: {self._why}"
        self._failed.add(what)

    def close(self) -> None:
        self._logger.removeHandler(self)
        super().close()


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
