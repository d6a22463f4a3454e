"""Applies the weights that `weft plan watch` computed to the open connections of this process.

Use it as the step of a control loop: ControlLoop(endpoint, Follower(file), pace_s=0.05). The
endpoint needs a path policy with weights: path_policy="weighted".
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transport.endpoint.control import Telemetry, Updates
from transport.errors import WeftError
from transport.plan.watch import WeightsError, read
from transport.telemetry.page import identity_of


class Follower:
    """The step function of a ControlLoop that sets path weights from the file of weft plan watch.

    It sets them whenever the file or the number of connections changes. A missing or wrong file
    changes nothing; on_error is called once with what is wrong in it.
    """

    def __init__(self, file: Path | str, on_error: Callable[[str], None] | None = None) -> None:
        self._file, self._on_error = Path(file), on_error
        self._version: tuple[int, int, int] | None = None
        self._said = ""
        self.changes = 0  # number of times that weights were set

    def __call__(self, telemetry: Telemetry) -> Updates | None:
        try:
            status = self._file.stat()
        except OSError:
            return None  # weft plan watch has not written the file yet
        version = status.st_mtime_ns, status.st_ino, len(telemetry.connections)
        if version == self._version:
            return None
        self._version = version
        try:
            weights = read(self._file)
        except WeightsError as error:
            if self._on_error is not None and str(error) != self._said:
                self._said = str(error)
                self._on_error(self._said)
            return None
        for seen in telemetry.connections:
            page = seen.connection.telemetry_page
            mine = weights.get(identity_of(page), {}) if page is not None else {}
            peer = seen.connection.peer_address.partition(" port ")[0]
            for engine, weight in mine.get(peer, {}).items():
                try:
                    seen.connection.set_params("path", int(engine), weight=weight)
                except WeftError:
                    continue  # the connection has ended
                self.changes += 1
        return None
