#!/usr/bin/env bash
# Checks the kernels on a machine with a GPU: results equal to the host's, memory accesses, speed.
# Needs nvcc, cmake, ninja and pybind11, and installs none of them; compute-sanitizer is optional.
#   usage: tests/device/kernels.sh FOLDER [ROUNDS]      JSON and logs go to FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath "$1")
rounds=${2:-200}
tree=${CMAKE_BINARY_DIR:-build/device}
cmake -S . -B "$tree" -GNinja -DWEFT_CUDA_KERNELS=ON -Dpybind11_DIR="$(python3 -c 'import pybind11; print(pybind11.get_cmake_dir())')" \
  > "$out/kernels-build.log"
cmake --build "$tree" --target weft_kernels_check >> "$out/kernels-build.log" || { tail -50 "$out/kernels-build.log"; exit 1; }
check=$tree/weft_kernels_check
status=0
"$check" --rounds "$rounds" > "$out/kernels.json" || status=$?
[ "$status" = 77 ] && exit 77
cat "$out/kernels.json"
if command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck initcheck synccheck; do
    compute-sanitizer --tool "$tool" --error-exitcode 1 "$check" --rounds 12 --bytes 0 > "$out/kernels-$tool.log" 2>&1 ||
      { status=1; tail -20 "$out/kernels-$tool.log"; }
    echo "$tool: $(tail -1 "$out/kernels-$tool.log")"
  done
else
  echo "compute-sanitizer is not on this machine's PATH: accesses were not checked" >&2
fi
exit "$status"
