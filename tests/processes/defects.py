"""Five mistakes that fault schedules of processes must find, planted one at a time in a copy.

Each was a real bug. A piece of text is replaced, as in tests/schedules/defects.py.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11

from tests.schedules.defects import ROOT, Defect

DEFECTS = (
    Defect(
        "verdict_is_not_passed_on",
        "native/control/control_sessions.cc",
        "  setup_.forget(id, reason);\n",
        "",
    ),
    Defect(
        "forked_child_keeps_the_sockets",
        "native/datapath/fork_registry.cc",
        "  for (const int descriptor : table.descriptors) {\n    if (table.null",
        "  for (const int descriptor : std::set<int>{}) {\n    if (table.null",
    ),
    Defect(
        "lost_control_socket_is_a_death",
        "native/control/control_redial.cc",
        "  if (!session->dialled && !session->confirmed) {\n    const auto opens",
        "  if (now_ns > 0) {\n    const auto opens",
    ),
    Defect(
        "policies_are_counted_after_the_engines_were_asked",
        "native/engine/policies/policy_board.cc",
        "    if (each.use_count() == 1) candidates.push_back(each.get());\n  }\n"
        "  if (candidates.empty()) return;\n",
        "    candidates.push_back(each.get());\n  }\n",
    ),
    # This defect drops frames. If they were only left unread, the arrival of the next frame would
    # cause them to be read, and no schedule would fail.
    Defect(
        "frames_beyond_a_turn_are_lost",
        "native/control/control_handshake.cc",
        "  unread_.push_back(id);",
        "  Frame lost;\n"
        "  for (std::uint16_t v = 0; channel->poll(&lost, &v) == Channel::Read::frame;) {\n  }",
    ),
)
# The sources from which the extension module is built.
SOURCES = ("native", "congestion", "transport", "tests", "bench/native", "CMakeLists.txt")


class Workshop:
    """A copy of the source tree that is rebuilt for each defect; plant() copies the result."""

    def __init__(self, directory: Path, policies: Path) -> None:
        self.directory = directory
        self.base = directory / "base"
        self.build = directory / "build"
        forget = shutil.ignore_patterns("__pycache__", "*.so")
        for name in SOURCES:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.base / name, ignore=forget)
            else:
                shutil.copy(source, self.base / name)
        self.call(
            *("cmake", "-S", self.base, "-B", self.build, "-GNinja"),
            f"-DWEFT_BUILT_POLICIES={policies}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        )
        self.make()

    def call(self, *words: str | Path) -> None:
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [str(word) for word in words],
            capture_output=True,
            text=True,
            env=os.environ | {"PATH": tools},
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]

    def make(self) -> Path:
        self.call("cmake", "--build", self.build, "--target", "weft_native", "--parallel", "2")
        (module,) = self.build.glob("_native*.so")
        return module

    def plant(self, defect: Defect) -> Path:
        """Makes a source tree with a library that is built with the defect."""
        file = self.base / defect.file
        healthy = file.read_text()
        file.write_text(defect.planted(healthy))
        try:
            module = self.make()
        finally:
            file.write_text(healthy)
        tree = self.directory / defect.name
        for name in ("transport", "congestion", "tests"):
            shutil.copytree(self.base / name, tree / name)
        shutil.copy(module, tree / "transport" / module.name)
        policies = ROOT / "transport" / "policies"
        if policies.exists():
            shutil.copytree(policies, tree / "transport" / "policies", dirs_exist_ok=True)
        return tree
