"""Tests --otlp with a real HTTP server that decodes what it gets, and without any."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from bench.lib.diagnosis_hosts import Shape, host_file
from tests.live.support import exchanging, weft
from tests.waiting import until
from transport.diagnose.live import otlp
from transport.diagnose.live.collector import Collector
from transport.diagnose.live.merge import merged
from transport.diagnose.live.metrics import METRICS
from transport.diagnose.live.operations import OPERATIONS_MAX, slowest
from transport.diagnose.live.share import HostFile

SHAPE = Shape(32, iterations=12, sent_rows=256)


def hosts(interval: int, slow_rank: int = -1) -> list[HostFile]:
    return [host_file(SHAPE, host, interval, slow_rank) for host in range(SHAPE.hosts)]


class Receiver:
    """What an OpenTelemetry collector at this URL got."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []

    @property
    def spans(self) -> list[Any]:
        resources = [one for each in self.traces for one in each.resource_spans]
        return [one for each in resources for scope in each.scope_spans for one in scope.spans]

    def named(self, begin: str) -> list[Any]:
        return [one for one in self.spans if one.name.startswith(begin)]

    @property
    def values(self) -> dict[str, list[float]]:
        """The last values of each metric."""
        found = {}
        for each in self.metrics:
            for resource in each.resource_metrics:
                for scope in resource.scope_metrics:
                    for one in scope.metrics:
                        points = (one.gauge or one.sum).data_points or one.sum.data_points
                        found[one.name] = [point.as_double for point in points]
        return found


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that http.server calls
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            if self.path.endswith("/v1/traces"):
                got.traces.append(ExportTraceServiceRequest.FromString(data))
            elif self.path.endswith("/v1/metrics"):
                got.metrics.append(ExportMetricsServiceRequest.FromString(data))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    got = Receiver(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def attributes(of: Any) -> dict[str, Any]:
    made = {}
    for one in of.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        made[one.key] = (
            [each.int_value for each in value.values] if kind == "array_value" else value
        )
    return made


def exported(collector: Collector, url: str, *slow_ranks: int) -> None:
    """Exports intervals in which these ranks are slow; -1: none is."""
    export = otlp.Export(url, 3600.0)
    for interval, rank in enumerate(slow_ranks, 1):
        export.step(collector, collector.step(hosts(interval, rank)))
    export.close(collector.incidents.values())
    assert export.problem == ""


def test_incident__is_a_trace_of_its_finding_and_its_whole_time() -> None:
    with receiving() as got:
        exported(Collector(), got.url, -1, 9, 9, 9, *[-1] * 6)
    (whole,), (found,) = got.named("incident: "), got.named("finding: ")
    assert (whole.trace_id, whole.span_id) == (found.trace_id, found.parent_span_id)
    assert whole.start_time_unix_nano <= found.start_time_unix_nano
    assert whole.end_time_unix_nano >= found.end_time_unix_nano
    said = attributes(whole)
    assert said["weft.incident.class"] == "non_communication_slow"
    assert said["weft.incident.place"] == "rank 9"
    assert said["weft.incident.ranks"] == [9]
    assert said["weft.incident.state"] == "ended"
    assert 0.6 < said["weft.incident.confidence"] <= 1
    assert "rank 9 took" in said["weft.incident.evidence"]
    assert attributes(found)["weft.incident.state"] == "open"


def test_incident__that_is_open_at_the_end_is_sent() -> None:
    with receiving() as got:
        exported(Collector(), got.url, -1, 9, 9)
    (whole,) = got.named("incident: ")
    assert attributes(whole)["weft.incident.state"] == "open"


def test_resource__is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def resource(got: Receiver) -> dict[str, Any]:
        return attributes(got.traces[0].resource_spans[0].resource)

    with receiving() as got:
        exported(Collector(), got.url, -1, 9, 9)
    assert resource(got)["service.name"] == "weft"
    assert resource(got)["host.name"]
    monkeypatch.setenv("OTEL_SERVICE_NAME", "training")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "cluster=a,host.name=node7")
    with receiving() as got:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", got.url)
        exported(Collector(), "env", -1, 9, 9)
    said = resource(got)
    assert (said["service.name"], said["cluster"], said["host.name"]) == ("training", "a", "node7")


def test_collectives__are_bounded_and_the_slowest() -> None:
    collector = Collector(operations_max=OPERATIONS_MAX)
    with receiving() as got:
        exported(collector, got.url, -1, -1, -1)
    spans = got.named("AllReduce")
    assert len(spans) == 2 * OPERATIONS_MAX  # what the first interval finds may have ended long ago
    said = attributes(spans[-1])
    assert said["weft.operation.sent"] == OPERATIONS_MAX < said["weft.operation.of"]
    assert said["weft.operation.ranks"] == SHAPE.hosts
    assert spans[-1].start_time_unix_nano < spans[-1].end_time_unix_nano


def test_collectives__that_have_not_ended_everywhere_are_left_out() -> None:
    job = merged(hosts(1), None)
    assert job is not None
    every, count = slowest(job.facts, 0, 1_000)
    lasted = [one.end_ns - one.begin_ns for one in every]
    assert lasted == sorted(lasted, reverse=True)
    assert count == len(every) > OPERATIONS_MAX
    job.facts.calls["end_ns"][:] = -1
    assert slowest(job.facts, 0, 1_000) == ([], 0)
    assert slowest(job.facts, 0, 0) == ([], 0)


def test_metrics__have_the_names_of_the_page() -> None:
    with receiving() as got:
        exported(Collector(), got.url, -1, 9, 9)
    assert got.values.keys() <= METRICS.keys()
    assert got.values["weft_diagnosis_ranks"] == [32]
    assert got.values["weft_diagnosis_finding"] == [1]
    assert got.values["weft_diagnosis_incidents"] == [1]


def test_command__sends_what_it_judges(tmp_path: Path) -> None:
    traces = str(tmp_path / "traces")
    with receiving() as got, exchanging(tmp_path, WEFT_TRACE=traces):
        words = ("--interval", "0.3", "--count", "12", "--otlp", got.url)
        done = weft("diagnose", "--live", traces, *words, where=tmp_path)
        assert "Traceback" not in done.stderr
        assert got.values["weft_diagnosis_ranks"] == [2]


def test_command__a_collector_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    traces = str(tmp_path / "traces")
    with socket.socket() as taken, exchanging(tmp_path, WEFT_TRACE=traces):
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        url = f"http://me:secret@127.0.0.1:{taken.getsockname()[1]}"
        words = ("--interval", "0.3", "--count", "12", "--otlp", url)
        done = weft("diagnose", "--live", traces, *words, where=tmp_path)
    assert done.returncode in (0, 1)
    assert ": 2 ranks, " in done.stderr
    assert done.stderr.count("cannot be sent to http://127.0.0.1:") == 1
    assert "the diagnosis goes on: Connection refused" in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr


def test_problem__ends_when_the_collector_answers() -> None:
    with receiving() as got:
        export = otlp.Export(got.url, 0.05)
        export._failures.fails("metrics", got.url)
        export._failures.fails("spans", got.url)
        assert export.problem.startswith("metrics cannot be sent to http://127.0.0.1:")
        export._failures._failed.discard("spans")
        export.step(Collector(), [])
        until(lambda: not export.problem)
        export.close(())


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:4318", "ftp://a:1", "http://", "http://a:b", "http://a:1/?x=1"]
)
def test_url__a_wrong_one_is_refused(url: str) -> None:
    with pytest.raises(otlp.OtlpError, match="write http://HOST:PORT"):
        otlp.check(url)


def test_environment__a_wrong_variable_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    export = otlp.Export("env", 3600.0)
    assert "Invalid timeout value 'soon'" in export.warning
    export.close(())


def test_packages__are_named_if_they_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "PACKAGES", ("opentelemetry.no.such",))
    with pytest.raises(otlp.OtlpError, match=r"pip install 'weft\[otlp\]'"):
        otlp.check("http://127.0.0.1:4318")
