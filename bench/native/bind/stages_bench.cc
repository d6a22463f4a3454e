// Python bindings of the ways of moving payload over UDP, and of copies in memory. They run without the GIL. The ways
// have threads of their own, whose namespace they change.
#include "bench/native/loops/stages_bench.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>

#include "native/bind/unlocked.h"

namespace py = pybind11;

namespace weft::bind {
namespace {

using End = std::tuple<int, std::string>;  // descriptor of a namespace, address

struct Memory {
  py::buffer_info source, target;
  std::size_t bytes = 0;
};

Memory memory_of(const py::buffer& source, const py::buffer& target) {
  Memory found{source.request(), target.request(true), 0};
  found.bytes = static_cast<std::size_t>(
      std::min(found.source.size * found.source.itemsize, found.target.size * found.target.itemsize));
  return found;
}

py::dict bench_stages(const std::tuple<std::string, std::string, std::string>& way, const End& from, const End& to,
                      const std::tuple<int, int>& cpus, const py::buffer& source, const py::buffer& target,
                      std::size_t datagram_bytes, std::int64_t warm_bytes, std::int64_t bytes) {
  const Memory memory = memory_of(source, target);
  bench::StagesPlan plan;
  std::tie(plan.sender, plan.receiver, plan.copy) = way;
  std::tie(plan.from.name_space, plan.from.address) = from;
  std::tie(plan.to.name_space, plan.to.address) = to;
  std::tie(plan.from_cpu, plan.to_cpu) = cpus;
  plan.source = static_cast<const std::uint8_t*>(memory.source.ptr);
  plan.target = static_cast<std::uint8_t*>(memory.target.ptr);
  plan.buffer_bytes = memory.bytes;
  plan.datagram_bytes = datagram_bytes;
  plan.warm_bytes = warm_bytes;
  plan.bytes = bytes;
  bench::StagesResult found;
  std::string error;
  Status status = Status::ok;
  {
    const Unlocked others_run;
    std::thread([&] { status = bench::bench_stages(plan, &found, &error); }).join();
  }
  if (status != Status::ok) throw std::invalid_argument(error.empty() ? status_text(status) : error);
  py::dict out;
  out["missing"] = found.missing;
  out["bytes"] = found.bytes;
  out["lost_bytes"] = found.lost_bytes;
  out["wrong"] = found.wrong;
  out["sender_ns"] = found.sender_ns;
  out["receiver_ns"] = found.receiver_ns;
  out["other_ns"] = found.other_ns;
  out["send_calls"] = found.send_calls;
  out["receive_calls"] = found.receive_calls;
  out["train_bytes"] = found.train_bytes;
  out["messages"] = found.messages;
  out["completions"] = found.completions;
  out["copied"] = found.copied;
  return out;
}

std::int64_t bench_copy(const std::string& kind, const py::buffer& source, const py::buffer& target,
                        std::size_t piece_bytes, std::int64_t bytes) {
  const Memory memory = memory_of(source, target);
  std::int64_t ns = 0;
  Status status = Status::ok;
  {
    const Unlocked others_run;
    status = bench::bench_copy(kind, static_cast<const std::uint8_t*>(memory.source.ptr),
                               static_cast<std::uint8_t*>(memory.target.ptr), memory.bytes, piece_bytes, bytes, &ns);
  }
  if (status != Status::ok) throw std::invalid_argument(kind + ": no such copy here");
  return ns;
}

}  // namespace

void bind_stages_bench(py::module_& module) {
  module.def("bench_stages", &bench_stages, py::arg("way"), py::arg("source_end"), py::arg("target_end"),
             py::arg("cpus"), py::arg("source"), py::arg("target"), py::arg("datagram_bytes"), py::arg("warm_bytes"),
             py::arg("bytes"), "Moves payload over UDP with a thread for each end; returns what each end spent.");
  module.def("bench_copy", &bench_copy, py::arg("kind"), py::arg("source"), py::arg("target"), py::arg("piece_bytes"),
             py::arg("bytes"), "The processor time of copying in memory, in ns.");
}

}  // namespace weft::bind
