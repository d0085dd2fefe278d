#!/usr/bin/env bash
# Runs one t5score command on every worker of a Cloud TPU slice, by gcloud ssh.
#
#   scripts/launch/tpu_pod.sh --name NAME --zone ZONE [OPTION...] -- VERB ARG...
#
#   --name NAME          of the TPU, as `gcloud compute tpus tpu-vm list` has it
#   --zone ZONE          where it is
#   --project PROJECT    (gcloud's own default)
#   --port P             of process 0, the first worker (8476)
#   --setup COMMAND      run on every worker first, as an installation
#   --directory DIR      where to run on the workers (their home folder)
#   --log FILE           on each worker, appended to (t5score.log)
#   --env NAME=VALUE     for every process; may be given several times
#   --python PROGRAM     interpreter on the workers (python3)
#   --dry_run            print the commands and run none
#
# MODEL_DIR and the data must be folders that all workers see under one name, such
# as a mounted bucket or file store. Exit code: that of gcloud ssh.
#
#   scripts/launch/tpu_pod.sh --name pod --zone us-east5-b \
#     --setup "pip install 't5score-jax[train,tpu]'" -- \
#     train --gin_file=run.gin --gin.MODEL_DIR="'/mnt/bucket/run'"
set -euo pipefail

usage() {
  sed -n '2,/^set /p' "${BASH_SOURCE[0]}" | sed -n 's/^# \{0,1\}//p'
}

fail() {
  echo "tpu_pod.sh: $1 (see --help)" >&2
  exit 2
}

name='' zone='' project='' port=8476 setup='' directory='' log=t5score.log
python=python3 dry_run='' environment=()
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage && exit 0 ;;
    --dry_run) dry_run=1 && shift && continue ;;
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
    --name) name=$value ;;
    --zone) zone=$value ;;
    --project) project=$value ;;
    --port) port=$value ;;
    --setup) setup=$value ;;
    --directory) directory=$value ;;
    --log) log=$value ;;
    --env) environment+=("$value") ;;
    --python) python=$value ;;
    *) fail "no option $option" ;;
  esac
done
[ $# -gt 0 ] || fail 'no command after --'
[ -n "$name" ] || fail '--name is needed'
[ -n "$zone" ] || fail '--zone is needed'

# What a worker runs: its metadata say which of how many it is, and where the
# first one is reached (id:port:address of each, by commas).
worker() {
  cat <<'WORKER'
set -o pipefail
attribute() {
  curl -sf -H 'Metadata-Flavor: Google' \
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}
index=$(attribute agent-worker-number) || exit 1
endpoints=$(attribute worker-network-endpoints) || exit 1
count=$(($(echo "$endpoints" | tr -cd , | wc -c) + 1))
first=$(echo "$endpoints" | cut -d, -f1 | cut -d: -f3)
WORKER
  [ -z "$directory" ] || printf 'cd %q || exit 1\n' "$directory"
  printf 'env '
  printf '%q ' ${environment[@]+"${environment[@]}"} "$python" -m t5score_jax \
    "$@"
  printf '\\\n  --coordinator_address="$first:%s" ' "$port"
  printf '%s\n' '--process_count="$count" --process_index="$index" \'
  printf '  2>&1 | tee -a %q\n' "$log"
}

# Runs $1 on all workers at once.
everywhere() {
  local words=(gcloud compute tpus tpu-vm ssh "$name" "--zone=$zone")
  [ -z "$project" ] || words+=("--project=$project")
  words+=(--worker=all "--command=$1")
  if [ -n "$dry_run" ]; then
    printf '%q ' "${words[@]}"
    echo
  else
    "${words[@]}"
  fi
}

[ -z "$setup" ] || everywhere "$setup"
everywhere "$(worker "$@")"
