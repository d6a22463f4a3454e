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
exec weft run -- torchrun \
  --nnodes "${NODES:-2}" --nproc-per-node "${GPUS:-8}" \
  --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" --rdzv-id "${JOB:-weft}" \
  "$@"
