#!/usr/bin/env bash
# Measures what estimates of training steps are made of, and the steps, on two GPUs.
# Needs PyTorch with NCCL, numba, cmake, ninja and pybind11, and installs none of them.
#   usage: tests/device/steps.sh FOLDER before|steps [OPTION OF bench step]...    JSON goes to FOLDER; 5 and 9 minutes
# before: the computation of one GPU; times of operations over weft and NVLink, alone and beside computation. Then,
# on any machine:
#   weft estimate calibrate FOLDER/times.json --beside FOLDER/beside.json -o weft.toml; likewise --contender NVLink
#   python -m bench estimate_steps --computation FOLDER/step-alone.json --network weft=weft.toml ...
# steps: the steps over both networks, for python -m bench estimate_steps --predicted ... --measured ...
set -uo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath "$1") phase=$2
shift 2
python3 -c 'import transport._native' 2> /dev/null || python3 setup.py -q build_ext --inplace > "$out/build.log" 2>&1 ||
  { tail -50 "$out/build.log"; exit 1; }
case $phase in
  before)
    python3 -m bench step --json "$out/step-alone.json" "$@" || exit 1
    python3 -m bench step --gpus 2 --beside --parallel alone --repeats 1 --json "$out/beside.json" "$@" || exit 1
    sizes=(65536 1048576 4194304 16777216 33554432 67108864 134217728 536870912)
    python3 -m bench nccl --repeats 3 --only weft --only NVLink "${sizes[@]/#/--size=}" \
      --operation all_reduce --operation all_gather --operation reduce_scatter --json "$out/times.json"
    ;;
  steps) python3 -m bench step --gpus 2 --json "$out/steps.json" "$@" ;;
  *) echo "usage: $0 FOLDER before|steps" >&2; exit 2 ;;
esac
