#!/usr/bin/env bash
# Measures what rules for NCCL's choices gain on two GPUs: fixed choices, rules of them, weft with and without.
# Needs PyTorch with NCCL, numba, cmake, ninja and pybind11, and installs none of them.
#   usage: tests/device/tuned.sh FOLDER      JSON and the rules go to FOLDER; 9 minutes
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath "$1")
python3 -c 'import transport._native' 2> /dev/null || python3 setup.py -q build_ext --inplace > "$out/build.log" 2>&1 ||
  { tail -50 "$out/build.log"; exit 1; }
sizes=(--size 8 --size 4096 --size 65536 --size 1048576 --size 16777216 --size 67108864)
operations=(--operation all_reduce --operation all_gather)
python3 -m bench nccl --repeats 4 "${sizes[@]}" "${operations[@]}" --only weft --only 'weft Ring LL 0' \
  --only 'weft Ring LL 1' --only 'weft Ring Simple 2' --only 'weft Ring Simple 4' --json "$out/nccl-choices.json" > "$out/choices.txt"
python3 -c 'from transport.cli import main; main()' estimate tune "$out/nccl-choices.json" -o "$out/tune.txt"
cat "$out/tune.txt"
cp "$out/tune.txt" tune.txt # results name the file as it was given
python3 -m bench nccl --repeats 5 "${sizes[@]}" "${operations[@]}" --only weft --tuned tune.txt --json "$out/nccl-tuned.json"
rm tune.txt
