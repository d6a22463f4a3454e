#!/usr/bin/env bash
# Runs the NCCL benchmark across a lab on a machine with one GPU per lab host: two by default.
# Needs root, pyroute2 and what nccl.sh needs, and installs none of them.
#   usage: tests/device/nccl_lab.sh FOLDER [LAB REPEATS CONTENDER...]      JSON goes to FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- gpus 10 weft Socket 'Socket 2x2' 'Socket 4x4 4 CTAs'
lab=$1 repeats=$2
shift 2
python3 -c 'import transport._native' 2> /dev/null ||
  python3 -m pip install --quiet --no-build-isolation --no-deps --editable . > "$out/build.log" 2>&1 ||
  { tail -50 "$out/build.log"; exit 1; }
only=()
for name in "$@"; do only+=(--only "$name"); done
gpus=$(python3 -c "import tomllib; print(tomllib.load(open('examples/labs/$lab.toml', 'rb'))['hosts'])")
status=0
python3 -m bench nccl --gpus "$gpus" --lab "examples/labs/$lab.toml" --size $((128 << 20)) --repeats "$repeats" "${only[@]}" \
  --json "$out/nccl-lab-$lab.json" || status=$?  # a failed contender does not stop the others
python3 - "$out/nccl-lab-$lab.json" << 'END'
import json, sys

for row in json.load(open(sys.argv[1]))["rounds"]:
    cores = f"{row['rank_cores']:.1f} {row['machine_cores']:.1f}"
    print(row["contender"], row["round"], row["operation"], f"{row['busbw']:.2f}", row["wrong"], cores, row["path_shares"], row["queue_drops"])
END
exit "$status"
