#!/usr/bin/env bash
# Runs the tests and benchmarks of GPU memory on a machine with one or two GPUs.
# Needs CuPy, PyTorch, pytest, cmake, ninja and pybind11, and installs none of them.
#   usage: tests/device/gpu.sh FOLDER [PART...]      parts: checks kernels examples bench sanitizer; JSON and logs go to FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- checks kernels examples bench sanitizer
tree=${CMAKE_BINARY_DIR:-build/release}
{ [ -e "$tree/build.ninja" ] && python3 -c 'import transport._native' 2> /dev/null; } ||
  python3 -m pip install --quiet --no-build-isolation --no-deps --editable . > "$out/build.log" 2>&1 ||
  { tail -50 "$out/build.log"; exit 1; }
cmake --build "$tree" --target weft-softverbs weft_bench_extension >> "$out/build.log" 2>&1 || { tail -50 "$out/build.log"; exit 1; }
status=0
part() {
  echo "== $*"
  "$@" || { echo "== failed: $*"; status=1; }
}
checks="python3 -m pytest -q -p no:cacheprovider tests/device/gpu_checks.py"
for name in "$@"; do
  case $name in
    checks) part timeout 400 $checks -rs ;;
    kernels) part timeout 400 tests/device/kernels.sh "$out" ;;
    examples)
      for library in cupy torch; do part python3 -m examples.kv_cache --with "$library"; done
      part python3 -m examples.ring_all_reduce --with cupy
      ;;
    bench) part python3 -m bench gpu --json "$out/gpu.json" && part python3 -m bench render "$out/gpu.json" ;;
    # Leaves out tests that misuse memory on purpose (freed memory, a dead context), long tests, and
    # tests in which streams wait: compute-sanitizer would wait for the persistent copy kernel,
    # which kernels.sh checks.
    sanitizer)
      for tool in memcheck racecheck initcheck synccheck; do
        part timeout 200 compute-sanitizer --tool "$tool" --error-exitcode 9 --log-file "$out/gpu-$tool.log" \
          $checks -k 'test_cupy__crosses and not 1073741825 or odd_tensors'
        tail -1 "$out/gpu-$tool.log" || true
      done
      ;;
    *) echo "no part named $name: checks kernels examples bench sanitizer" >&2; exit 2 ;;
  esac
done
exit "$status"
