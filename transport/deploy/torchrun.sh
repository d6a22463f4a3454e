#!/usr/bin/env bash
# Starts the ranks of this host; run the same command on each host:
#   HEAD=host-a NODES=2 ./torchrun.sh train.py
# HEAD is any host of the job: torchrun's processes meet there, on TCP port 29500.
set -euo pipefail
: "${HEAD:?the name or address of one host of the job}"
here=$(cd "$(dirname "$0")" && pwd)
set -a
# shellcheck source=transport/deploy/job.env
. "$here/job.env"
set +a
# torchrun compares names to find out whether this host is HEAD, and tells others its own name. The
# address from which this host reaches HEAD is right where names do not resolve, too.
meeting=()
if address=$(getent ahosts "$HEAD" | awk 'NR == 1 { print $1 }') && [[ -n "$address" ]]; then
  source=$(ip -o route get to "$address" 2>/dev/null | sed -n 's/.* src \([^ ]*\).*/\1/p') || source=
  if [[ "$address" == 127.* || "$address" == ::1 ]]; then
    meeting=(--rdzv-conf is_host=1)
  elif [[ "$source" == "$address" ]]; then
    meeting=(--rdzv-conf is_host=1 --local-addr "$source")
  elif [[ -n "$source" ]]; then
    meeting=(--rdzv-conf is_host=0 --local-addr "$source")
  fi
fi
exec weft run -- torchrun \
  --nnodes "${NODES:-2}" --nproc-per-node "${GPUS:-8}" \
  --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" --rdzv-id "${JOB:-weft}" \
  ${meeting[@]+"${meeting[@]}"} "$@"
