#!/usr/bin/env bash
# Starts Ray on this host, so that its workers use weft:
#   ./ray_start.sh --head --port=6379                     on one host
#   ./ray_start.sh --address=host-a:6379                  on the others
#   python ray_train.py                                   on one of them
# A worker inherits the variables of the raylet that starts it, so weft run stands before ray start.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
set -a
# shellcheck source=transport/deploy/job.env
. "$here/job.env"
set +a
exec weft run -- ray start "$@"
