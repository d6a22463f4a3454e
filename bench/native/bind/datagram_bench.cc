// Python binding of the benchmark of datagrams between network namespaces. It runs without the GIL, on a thread of its
// own, as it changes the thread's namespace.
#include "bench/native/loops/datagram_bench.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <thread>

#include "native/bind/unlocked.h"

namespace py = pybind11;

namespace weft::bind {
namespace {

py::dict bench_datagrams(const std::string& datapath, int from_space, const std::string& from_address,
                         unsigned from_interface, int to_space, const std::string& to_address, unsigned to_interface,
                         std::int64_t datagrams, std::int64_t datagram_bytes, std::int64_t train) {
  bench::DatagramPlan plan;
  plan.datapath = datapath;
  plan.from = {from_space, from_address, from_interface};
  plan.to = {to_space, to_address, to_interface};
  plan.datagrams = datagrams;
  plan.datagram_bytes = datagram_bytes;
  plan.train = train;
  bench::DatagramResult found;
  std::string error;
  Status status = Status::ok;
  {
    const Unlocked others_run;
    std::thread([&] { status = bench::bench_datagrams(plan, &found, &error); }).join();
  }
  if (status != Status::ok) throw std::invalid_argument(error.empty() ? status_text(status) : error);
  py::dict out;
  out["sent"] = found.sent;
  out["received"] = found.received;
  out["bypassed"] = found.bypassed;
  out["stamped"] = found.stamped;
  out["calls"] = found.calls;
  out["cpu_ns"] = found.cpu_ns;
  out["send_ns"] = found.send_ns;
  return out;
}

}  // namespace

void bind_datagram_bench(py::module_& module) {
  module.def("bench_datagrams", &bench_datagrams, py::arg("datapath"), py::arg("from_space"), py::arg("from_address"),
             py::arg("from_interface"), py::arg("to_space"), py::arg("to_address"), py::arg("to_interface"),
             py::arg("datagrams"), py::arg("datagram_bytes"), py::arg("train"),
             "Sends datagrams from one network namespace to another in one thread; returns what they cost.");
}

}  // namespace weft::bind
