#!/usr/bin/env bash
# Runs two ranks of NCCL through shared memory, and past the kernel's stack in a lab: losses, rates, faults. On one GPU
# the ranks share it through NVIDIA's Multi-Process Service, which this script starts and ends; without it they take
# turns, and times say little.
# Needs root, PyTorch with NCCL, pyroute2, DuckDB, numba, cmake, ninja and pybind11, and installs none of them.
#   usage: tests/device/one_host.sh FOLDER 1|2 STEP...    JSON goes to FOLDER; STEP: losses lab sizes small local faults
set -uo pipefail
if [[ $# -lt 3 || ! -d $1 || $2 != [12] ]]; then
  echo "usage: one_host.sh FOLDER GPUS STEP...; FOLDER exists, GPUS is 1 or 2" >&2
  exit 2
fi
out=$(realpath "$1") gpus=$2
export CHECK_GPUS=$gpus
shift 2
cd "$(dirname "$0")/../.." || exit
python3 -c 'import transport._native' 2> /dev/null || python3 setup.py -q build_ext --inplace > "$out/build.log" 2>&1 ||
  { tail -50 "$out/build.log"; exit 1; }
if ((gpus == 1)) && command -v nvidia-cuda-mps-control > "$out/mps.log" && nvidia-cuda-mps-control -d >> "$out/mps.log" 2>&1
then
  trap 'echo quit | nvidia-cuda-mps-control' EXIT
fi
status=0
run() {  # SECONDS COMMAND...: goes on whatever fails
  local began=$SECONDS limit=$1
  shift
  timeout "$limit" "$@" || { status=1; echo "failed: $*"; }
  echo "$((SECONDS - began)) s"
}
nccl() { run 400 python3 -m bench nccl --gpus "$gpus" --ranks 2 "$@"; }
memory=(--only weft --only 'weft local' --only 'weft ring' --only Socket)
peers=("${memory[@]}" --only 'Socket 4x4' --only 'Socket 4x4 4 CTAs')
((gpus == 2)) && peers+=(--only SHM)
for step in "$@"; do
  echo "== $step"
  case $step in
    losses)
      nccl --fsdp "${memory[@]}" --json "$out/fsdp.json"
      nccl --ddp "${memory[@]}" --json "$out/ddp.json"
      ;;
    lab)
      python3 -m transport doctor | grep -A1 AF_XDP
      nccl --fsdp --lab examples/labs/gpus.toml --only weft --only 'weft xdp' --only Socket --json "$out/fsdp-lab.json"
      ;;
    sizes) nccl --repeats 3 --size 134217728 --size 16777216 "${peers[@]}" --json "$out/sizes.json" ;;
    small) nccl --repeats 3 --size 8 --size 65536 --size 1048576 "${peers[@]}" --json "$out/small.json" ;;
    local)
      cmake --build build/release --parallel --target weft_bench_extension > "$out/build-bench.log" 2>&1
      run 400 python3 -m bench local --json "$out/local.json"
      ;;
    faults)
      export WEFT_LOCAL=auto
      run 400 python3 -m tests.device.diagnose_faults "$out/faults.json" "$out" ddp-straggler ddp-stopped ddp-killed
      unset WEFT_LOCAL
      ;;
    *) echo "no step $step" >&2; exit 2 ;;
  esac
done
exit "$status"
