// Python bindings of the benchmarks of the verbs datapath over a fake libibverbs. They need a build with libibverbs and
// run without the GIL.
#include "bench/native/loops/rdma_bench.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>

#include "native/bind/unlocked.h"

namespace py = pybind11;

namespace weft::bind {
namespace {

template <class Plan, class Result, class Bench>
Result call(const Plan& plan, const Bench& bench) {
  engine::Knobs knobs;
  std::string error;
  Result result;
  Status status = engine::load_knobs(&knobs, &error);
  if (status == Status::ok) {
    const Unlocked others_run;
    status = bench(plan, knobs, &result, &error);
  }
  if (status != Status::ok) throw std::invalid_argument(error.empty() ? status_text(status) : error);
  return result;
}

bench::RdmaBenchWhat what_of(const std::string& name) {
  if (name == "datapath") return bench::RdmaBenchWhat::datapath;
  if (name == "stub") return bench::RdmaBenchWhat::stub;
  if (name == "stack") return bench::RdmaBenchWhat::stack;
  throw std::invalid_argument("`what` must be datapath, stub or stack");
}

bench::RdmaBenchPayload payload_of(const std::string& name) {
  if (name == "none") return bench::RdmaBenchPayload::none;
  if (name == "copied") return bench::RdmaBenchPayload::copied;
  if (name == "direct") return bench::RdmaBenchPayload::direct;
  throw std::invalid_argument("payload must be none, copied or direct");
}

py::dict bench_rdma(const std::string& what, const std::string& mode, const std::string& payload, std::int64_t segments,
                    std::int64_t segment_bytes, std::int64_t burst_segments, std::int64_t paths) {
  bench::RdmaBenchPlan plan;
  plan.what = what_of(what);
  plan.payload = payload_of(payload);
  plan.mode = mode;
  plan.segments = segments;
  plan.segment_bytes = segment_bytes;
  plan.burst_segments = burst_segments;
  plan.paths = paths;
  const auto found = call<bench::RdmaBenchPlan, bench::RdmaBenchResult>(plan, bench::bench_rdma);
  py::dict out;
  out["ns_per_segment"] = found.ns_per_segment;
  out["send_ns_per_segment"] = found.send_ns_per_segment;
  out["receive_ns_per_segment"] = found.receive_ns_per_segment;
  out["segments"] = found.segments;
  out["doorbells"] = found.doorbells;
  out["resent"] = found.resent;
  out["carried_segments"] = found.carried_segments;
  return out;
}

py::dict bench_rdma_setup(const std::string& mode, std::int64_t peers, std::int64_t paths, std::int64_t segment_bytes) {
  const bench::RdmaSetupPlan plan{mode, peers, paths, segment_bytes};
  const auto found = call<bench::RdmaSetupPlan, bench::RdmaSetupResult>(plan, bench::bench_rdma_setup);
  py::dict out;
  out["open_ns"] = found.open_ns;
  out["connect_ns"] = found.connect_ns;
  out["close_ns"] = found.close_ns;
  out["break_ns"] = found.break_ns;
  out["reestablish_ns"] = found.reestablish_ns;
  out["reestablished"] = found.reestablished;
  out["datapath_bytes"] = found.datapath_bytes;
  out["core_bytes"] = found.core_bytes;
  out["queue_pairs"] = found.queue_pairs;
  out["send_requests"] = found.send_requests;
  out["receive_requests"] = found.receive_requests;
  out["completions"] = found.completions;
  out["addresses"] = found.addresses;
  out["registered_bytes"] = found.registered_bytes;
  out["provider_calls"] = found.provider_calls;
  return out;
}

}  // namespace

void bind_rdma_bench(py::module_& module) {
  module.def("bench_rdma", &bench_rdma, py::arg("what"), py::arg("mode"), py::arg("payload"), py::arg("segments"),
             py::arg("segment_bytes"), py::arg("burst"), py::arg("paths"),
             "Nanoseconds per segment of both ends over a fake libibverbs, stepped by this thread.");
  module.def("bench_rdma_setup", &bench_rdma_setup, py::arg("mode"), py::arg("peers"), py::arg("paths"),
             py::arg("segment_bytes"), "Time and heap bytes to set up paths to many peers, over a fake libibverbs.");
}

}  // namespace weft::bind
