#!/usr/bin/env bash
# Checks weft with a rank on each of four GPUs or more, or with more ranks, several to a GPU: losses of FSDP, matrices,
# diagnosis, collectives on loopback. If ranks share GPUs, times say little, and only three sizes are measured.
# Needs PyTorch with NCCL, numba, DuckDB, cmake, ninja and pybind11, and installs none of them.
#   usage: tests/device/many_gpus.sh FOLDER GPUS [RANKS]      JSON goes to FOLDER; about 7 minutes with four or eight ranks
set -uo pipefail
if [[ $# -lt 2 || ! -d $1 || ${3:-$2} -lt $2 ]]; then
  echo "usage: many_gpus.sh FOLDER GPUS [RANKS]; FOLDER exists, RANKS is not less than GPUS" >&2
  exit 2
fi
out=$(realpath "$1") gpus=$2 ranks=${3:-$2}
cd "$(dirname "$0")/../.."
python3 -c 'import transport._native' 2> /dev/null ||
  python3 -m pip install --quiet --no-build-isolation --no-deps --editable . > "$out/build.log" 2>&1 ||
  { tail -50 "$out/build.log"; exit 1; }
export CHECK_GPUS=$gpus CHECK_RANKS=$ranks
status=0
step() {  # NAME COMMAND...: runs all steps, whatever fails
  local began=$SECONDS name=$1
  shift
  timeout 400 "$@" || { status=1; echo "failed: $name"; }
  echo "$name: $((SECONDS - began)) s"
}
sizes=()
((ranks > gpus)) && sizes=(--size 8 --size 1048576 --size 16777216)
step fsdp python3 -m bench nccl --gpus "$gpus" --ranks "$ranks" --fsdp --json "$out/nccl-fsdp.json"
step volumes python3 -m tests.device.trace_checks "$out/trace-checks.json" "$gpus" "$ranks"
step diagnosis python3 -m tests.device.diagnose_faults "$out/diagnose.json" "$out" ddp-straggler ddp-stopped ddp-killed
step collectives python3 -m bench nccl --gpus "$gpus" --ranks "$ranks" --repeats 1 "${sizes[@]}" \
  --only weft --only Socket --only 'Socket 4x4 4 CTAs' --json "$out/nccl-sizes.json"
exit "$status"
