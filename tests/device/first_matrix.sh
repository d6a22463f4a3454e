#!/usr/bin/env bash
# Follows the README on a machine with two GPUs, as a first user does: trains with DDP, looks at the trace.
# Needs PyTorch with NCCL, numba, DuckDB, cmake, ninja and pybind11, and installs none of them.
#   usage: tests/device/first_matrix.sh FOLDER      output goes to FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath "$1")
traces=$(mktemp -d)
trap 'rm -rf "$traces"' EXIT
python3 -c 'import transport._native' 2> /dev/null ||
  python3 -m pip install --quiet --no-build-isolation --no-deps --editable . > "$out/build.log" 2>&1 ||
  { tail -50 "$out/build.log"; exit 1; }
# One host: without the first two, NCCL uses NVLink and no network; the last one keeps weft on the network.
export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 WEFT_INTERFACES=lo WEFT_LOCAL=off
began=$SECONDS
{
  echo "WEFT_LOCAL=$WEFT_LOCAL"
  WEFT_TRACE=$traces weft run -- python3 -m torch.distributed.run --standalone --nproc-per-node 2 examples/ddp_plugin.py
  for view in info matrix profile; do
    echo "\$ weft trace $view"
    weft trace "$view" "$traces"
  done
  echo '$ weft diagnose'
  weft diagnose "$traces" || echo "exit status $?"
  echo "seconds: $((SECONDS - began))"
} 2>&1 | tee "$out/first-matrix.txt"
