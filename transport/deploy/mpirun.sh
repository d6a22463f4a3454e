#!/usr/bin/env bash
# Starts a rank per GPU with Open MPI 4 or 5, from one host:
#   HEAD=host-a HOSTS=host-a,host-b GPUS=8 ./mpirun.sh train.py
# Remote ranks get only the variables that -x names: here all WEFT_ variables of job.env and of the
# environment. A further variable of another name needs an -x below. Each rank calls weft run
# itself, so that the plugin may lie elsewhere on another host.
set -euo pipefail
: "${HEAD:?the host of rank 0}" "${HOSTS:?the hosts of the job, separated by commas}"
gpus=${GPUS:-8}
here=$(cd "$(dirname "$0")" && pwd)
set -a
# shellcheck source=transport/deploy/job.env
. "$here/job.env"
set +a
export MASTER_ADDR=$HEAD MASTER_PORT=29500

slots='' count=0
for host in ${HOSTS//,/ }; do
  slots+="${slots:+,}$host:$gpus"
  count=$((count + gpus))
done

settings=()
for name in $(compgen -e WEFT_); do settings+=(-x "$name"); done

# PyTorch reads RANK, LOCAL_RANK and WORLD_SIZE. Without --bind-to none mpirun may bind each rank to
# one core, which weft's engines then share with it.
# shellcheck disable=SC2016 # the rank's shell expands these
exec mpirun -np "$count" --host "$slots" --map-by "ppr:$gpus:node" --bind-to none \
  "${settings[@]}" \
  -x NCCL_SOCKET_IFNAME -x NCCL_DEBUG -x MASTER_ADDR -x MASTER_PORT -x PATH \
  bash -c '
    export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE
    export LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK
    exec weft run -- python "$@"' rank "$@"
