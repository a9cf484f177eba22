#!/bin/bash
# A synchronous run on the nodes of a Slurm allocation, with one process on each node.
#
#   sbatch --nodes 4 --gpus-per-node 8 deploy/slurm.sh \
#       --gin_file gin_configs/experiments/digits_shared_bottom.gin --model_dir /shared/runs/digits
#
# The script takes the arguments of launch.train; model_dir is a folder that all nodes share.
# SERVERS=n makes the last n nodes parameter servers. Two minutes before the end of its time, and when
# the job is preempted, the run saves and ends with an exit code of 128 or more. The script then queues
# the job again, and the run continues. Anyone who reaches PORT on a node can read and write files as
# you: close the port to all but the nodes (docs/distributed.md).
#SBATCH --job-name=mtl
#SBATCH --ntasks-per-node=1
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -u

port=${PORT:-29500}
servers=${SERVERS:-0}
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

# Prints a JSON list of addresses, ["a:1", "b:1"], of $2 hosts from number $1 on.
addresses() {
  local listed="" host
  for host in "${hosts[@]:$1:$2}"; do listed+="${listed:+, }\"$host:$port\""; done
  echo "[$listed]"
}

workers=$((${#hosts[@]} - servers - 1))
jobs="\"chief\": $(addresses 0 1)"
((workers > 0)) && jobs+=", \"worker\": $(addresses 1 "$workers")"
((servers > 0)) && jobs+=", \"ps\": $(addresses $((workers + 1)) "$servers")"
export CLUSTER="{$jobs}" WORKERS=$workers

# Each process derives its role from its number.
srun --kill-on-bad-exit=1 bash -c '
  if ((SLURM_PROCID == 0)); then job=chief index=0
  elif ((SLURM_PROCID <= WORKERS)); then job=worker index=$((SLURM_PROCID - 1))
  else job=ps index=$((SLURM_PROCID - WORKERS - 1)); fi
  export TF_CONFIG="{\"cluster\": $CLUSTER, \"task\": {\"type\": \"$job\", \"index\": $index}}"
  exec python -m launch.train "$@"' train "$@"
code=$?

((code >= 128)) && scontrol requeue "$SLURM_JOB_ID"
exit $code
