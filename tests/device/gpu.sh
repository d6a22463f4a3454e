#!/usr/bin/env bash
# Decides what is run on a machine with one or two GPUs for memory of a GPU: exactness, the sanitizers, the budgets.
# Never installs what the machine lacks: CuPy, PyTorch, pytest, cmake, ninja and pybind11 have to be there.
#   usage: tests/device/gpu.sh FOLDER [PART...]      parts: checks kernels bench example sanitizer; JSON and logs go to FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- checks kernels example sanitizer bench
python3 -c 'import transport._native' 2> /dev/null ||
  python3 -m pip install --quiet --no-build-isolation --no-deps --editable . > "$out/build.log" 2>&1 ||
  { tail -50 "$out/build.log"; exit 1; }
tree=$(dirname "$(find build -name build.ninja -path '*release*' -o -name build.ninja | head -1)")
status=0
part() {
  echo "== $*"
  "$@" || { echo "== failed: $*"; status=1; }
}
for name in "$@"; do
  case $name in
    checks) part python3 -m pytest -q -p no:cacheprovider tests/device/gpu_checks.py ;;
    kernels)
      cmake --build "$tree" --target weft_kernels_check > "$out/kernels-build.log" 2>&1 || tail -20 "$out/kernels-build.log"
      part "$tree/weft_kernels_check" > "$out/kernels.json"
      ;;
    example)
      part python3 -m examples.kv_cache --with cupy
      part python3 -m examples.kv_cache --with torch
      ;;
    sanitizer)
      # Small messages: every access of every kernel is watched.
      for tool in memcheck racecheck initcheck synccheck; do
        part compute-sanitizer --tool "$tool" --error-exitcode 9 "$tree/weft_kernels_check" --small > "$out/sanitizer-$tool.log" 2>&1
        tail -2 "$out/sanitizer-$tool.log"
      done
      ;;
    bench) part python3 -m bench gpu --json "$out/gpu.json" ;;
    *) echo "no part named $name: checks kernels bench example sanitizer" >&2; exit 2 ;;
  esac
done
exit "$status"
