#!/usr/bin/env bash
# Submits one t5score command to Slurm, one process a node or one a GPU.
#
#   scripts/launch/slurm.sh --nodes N [OPTION...] -- VERB ARGUMENT...
#
#   --nodes N            nodes
#   --gpus G             GPUs of each node that the job asks for (0: none)
#   --process_per_gpu    one process for each GPU; otherwise one for each node,
#                        which sees all its GPUs
#   --port P             of process 0, on the first node (8476)
#   --grace SECONDS      SIGTERM comes so long before the time limit (180)
#   --log FILE           output, appended to over restarts (t5score-%j.log)
#   --directory DIR      where to run (the current folder)
#   --env NAME=VALUE     for every process; may be given several times
#   --python PROGRAM     interpreter (PYTHON, or python3)
#   --sbatch OPTION      passed to sbatch, as --sbatch --partition=gpu; may be
#                        given several times
#   --dry_run            print the job's script and submit nothing
#
# After SIGTERM (time limit, preemption) the processes save and end with exit code
# 75; the job then puts itself into the queue again and goes on from there.
#
#   scripts/launch/slurm.sh --nodes 4 --gpus 8 --sbatch --time=24:00:00 -- \
#     train --gin_file=run.gin
set -euo pipefail

usage() {
  sed -n '2,/^set /p' "${BASH_SOURCE[0]}" | sed -n 's/^# \{0,1\}//p'
}

fail() {
  echo "slurm.sh: $1 (see --help)" >&2
  exit 2
}

nodes='' gpus=0 tasks=1 port=8476 grace=180 log='t5score-%j.log' dry_run=''
process_per_gpu='' environment=() sbatch=() directory=$PWD
python=${PYTHON:-python3}
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage && exit 0 ;;
    --dry_run) dry_run=1 && shift && continue ;;
    --process_per_gpu) process_per_gpu=1 && shift && continue ;;
    --) shift && break ;;
    --*=*) option=${1%%=*} value=${1#*=} && shift ;;
    --*)
      [ $# -ge 2 ] || fail "$1 needs a value"
      option=$1 value=$2
      shift 2
      ;;
    *) fail "before $1 a -- is missing" ;;
  esac
  case $option in
    --nodes) nodes=$value ;;
    --gpus) gpus=$value ;;
    --port) port=$value ;;
    --grace) grace=$value ;;
    --log) log=$value ;;
    --directory) directory=$value ;;
    --env) environment+=("$value") ;;
    --python) python=$value ;;
    --sbatch) sbatch+=("$value") ;;
    *) fail "no option $option" ;;
  esac
done
[ $# -gt 0 ] || fail 'no command after --'
[[ $nodes =~ ^[1-9][0-9]*$ ]] || fail "--nodes $nodes: a number is needed"
[[ $gpus =~ ^[0-9]+$ ]] || fail "--gpus $gpus: a number is needed"
if [ -n "$process_per_gpu" ]; then
  [ "$gpus" -gt 0 ] || fail '--process_per_gpu needs --gpus'
  tasks=$gpus
fi

# The job's script. What stands after \$ is looked up on the nodes.
job() {
  local option
  echo '#!/usr/bin/env bash'
  for option in "--job-name=t5score" "--nodes=$nodes" \
    "--ntasks-per-node=$tasks" "--output=$log" --open-mode=append \
    "--chdir=$directory" "--signal=TERM@$grace" --requeue \
    ${sbatch[@]+"${sbatch[@]}"}; do
    echo "#SBATCH $option"
  done
  [ "$gpus" -eq 0 ] || echo "#SBATCH --gpus-per-node=$gpus"
  cat <<'JOB'
# The processes save and end; this script must outlive them.
trap '' TERM
T5SCORE_COORDINATOR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export T5SCORE_COORDINATOR
process='
trap - TERM
JOB
  if [ -n "$process_per_gpu" ]; then
    echo "export CUDA_VISIBLE_DEVICES=\$SLURM_LOCALID"
  fi
  echo 'exec env "$@" \'
  echo "  --coordinator_address=\$T5SCORE_COORDINATOR:$port \\"
  echo '  --process_count=$SLURM_NTASKS --process_index=$SLURM_PROCID'
  echo "'"
  printf 'srun --kill-on-bad-exit=0 bash -c "$process" t5score \\\n  '
  printf '%q ' ${environment[@]+"${environment[@]}"} "$python" -m t5score_jax \
    "$@"
  cat <<'JOB'

code=$?
if [ "$code" -eq 75 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
JOB
}

if [ -n "$dry_run" ]; then
  job "$@"
else
  job "$@" | sbatch
fi
