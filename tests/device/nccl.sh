#!/usr/bin/env bash
# Builds weft and runs the NCCL benchmarks on a machine with two GPUs: all sizes, DDP, throughput.
# Needs PyTorch with NCCL, numba, cmake, ninja and pybind11, and installs none of them.
#   usage: tests/device/nccl.sh FOLDER      JSON and logs go to FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath "$1")
python3 -m pip install --quiet --no-build-isolation --no-deps --editable . > "$out/build.log" 2>&1 || { tail -50 "$out/build.log"; exit 1; }

size_bytes=$((128 << 20))
python3 -m bench nccl --repeats 1 --only weft --only Socket --json "$out/nccl-sizes.json"
python3 -m bench nccl --ddp --json "$out/nccl-ddp.json"
python3 -m bench nccl --repeats 5 --size "$size_bytes" --only weft --only Socket --only 'Socket 2x1' \
  --only 'Socket 2x2' --only 'Socket 4x4' --only 'Socket 4x4 4 CTAs' --only 'Socket 8x8' --json "$out/nccl.json"
python3 -m bench nccl --repeats 1 --size "$size_bytes" --only weft --only SHM --only NVLink --json "$out/nccl-scale.json"
