// Python bindings of the benchmarks of GPU copies and kernels. They need libcuda and run without the GIL.
#include <pybind11/pybind11.h>

#include <map>
#include <stdexcept>
#include <string>

#include "bench/native/loops/kernels_bench.h"
#include "bench/native/loops/staging_bench.h"
#include "native/bind/unlocked.h"

namespace py = pybind11;

namespace weft::bind {
namespace {

// Returns (nanoseconds of the transfer through a bounce buffer, nanoseconds of plain copies). Raises RuntimeError with
// the driver's error.
py::tuple bench_staging(int device, std::uint64_t source, std::uint64_t target, std::uint64_t bytes,
                        std::uint64_t ring_bytes_max, int repeats) {
  const gpu::StagingPlan plan{device, source, target, bytes, ring_bytes_max, repeats};
  std::string error;
  std::int64_t staged = -1, copied = -1;
  {
    const Unlocked others_run;
    const gpu::Driver* const driver = gpu::load_driver("libcuda.so.1", &error);
    if (driver != nullptr) staged = gpu::time_staged(*driver, plan, &error);
    if (staged >= 0) copied = gpu::time_copied(*driver, plan, &error);
  }
  if (copied < 0) throw std::runtime_error(error);
  return py::make_tuple(staged, copied);
}

// Returns (nanoseconds of the kernel, nanoseconds of the same work by copies, bytes per repetition). Raises
// RuntimeError with the driver's error.
py::tuple bench_kernel(const std::string& work, int device, std::uint64_t source, std::uint64_t target,
                       std::uint64_t bytes, std::uint64_t piece_bytes, int repeats) {
  static const std::map<std::string, gpu::KernelWork> works{
      {"gather", gpu::KernelWork::gather}, {"scatter", gpu::KernelWork::scatter}, {"reduce", gpu::KernelWork::reduce}};
  const auto found = works.find(work);
  if (found == works.end()) throw py::value_error("work must be gather, scatter or reduce");
  const gpu::KernelPlan plan{device, found->second, source, target, bytes, piece_bytes, repeats};
  std::string error;
  gpu::KernelTimes times;
  {
    const Unlocked others_run;
    const gpu::Driver* const driver = gpu::load_driver("libcuda.so.1", &error);
    if (driver != nullptr) times = gpu::time_kernel(*driver, plan, &error);
  }
  if (times.copy_ns < 0) throw std::runtime_error(error);
  return py::make_tuple(times.kernel_ns, times.copy_ns, times.bytes);
}

}  // namespace

void bind_gpu_bench(py::module_& module) {
  module.def("bench_staging", &bench_staging,
             "(ns through rings, ns by plain copies), of all repeats; address 0: do not time that direction.",
             py::arg("device"), py::arg("source"), py::arg("target"), py::arg("bytes"), py::arg("ring_bytes_max"),
             py::arg("repeats"));
  module.def("bench_kernel", &bench_kernel, "(ns of all launches, ns of as many device copies, bytes of each).",
             py::arg("work"), py::arg("device"), py::arg("source"), py::arg("target"), py::arg("bytes"),
             py::arg("piece_bytes"), py::arg("repeats"));
}

}  // namespace weft::bind
