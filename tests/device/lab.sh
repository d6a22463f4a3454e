#!/usr/bin/env bash
# Runs the lab benchmarks over paths of 1 Gb/s on a machine with many cores.
# Needs root, numba, cmake, ninja, pybind11 and pyroute2, and installs none of them; needs no GPU.
#   usage: tests/device/lab.sh FOLDER [REPEATS]      JSON goes to FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath "$1")
repeats=${2:-3}
python3 -c 'import transport._native' 2> /dev/null ||
  python3 -m pip install --quiet --no-build-isolation --no-deps --editable . > "$out/build.log" 2>&1 ||
  { tail -50 "$out/build.log"; exit 1; }
status=0
for words in 'collision' 'loss' 'failover' 'incast -N 15 --victim -D 3 --lab examples/labs/incast_15.toml'; do
  # shellcheck disable=SC2086
  python3 -m bench $words --repeats "$repeats" --json "$out/${words%% *}.json" || status=1
  [ ! -e "$out/${words%% *}.json" ] || python3 -m bench render "$out/${words%% *}.json" --units Gb/s
done
exit "$status"
