#!/usr/bin/env bash
# Runs one t5score command as several processes: on hosts by ssh, or here.
#
#   scripts/launch/hosts.sh --hosts HOST,HOST,... [OPTION...] -- VERB ARGUMENT...
#   scripts/launch/hosts.sh --local N [OPTION...] -- VERB ARGUMENT...
#
#   --hosts H1,H2,...    one process on each; process 0 on the first, which the
#                        others must reach by that name. Needs ssh without a
#                        password, and the package in the same place everywhere
#   --local N            N processes on this machine
#   --port P             of process 0 (8476; with --local a free one)
#   --host_devices D     CPU devices of each process (JAX_NUM_CPU_DEVICES)
#   --directory DIR      where to run (the current folder)
#   --env NAME=VALUE     for every process; may be given several times
#   --python PROGRAM     interpreter (PYTHON, or python3)
#   --dry_run            print the commands and run none
#
# Standard output is that of process 0; everything that the others print goes to
# standard error, after [INDEX]. SIGTERM and Ctrl-C are passed on to all; after a
# second one all are killed. Exit code: 0; 75 or 130 where the processes saved
# and ended after SIGTERM or Ctrl-C; otherwise that of the first that failed.
#
#   scripts/launch/hosts.sh --hosts a,b -- train --gin_file=run.gin
#   scripts/launch/hosts.sh --local 2 --host_devices 4 -- train --gin_file=run.gin
set -euo pipefail

usage() {
  sed -n '2,/^set /p' "${BASH_SOURCE[0]}" | sed -n 's/^# \{0,1\}//p'
}

fail() {
  echo "hosts.sh: $1 (see --help)" >&2
  exit 2
}

hosts=() local_count='' port='' host_devices='' dry_run='' environment=()
directory=$PWD
python=${PYTHON:-python3}
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
    --hosts) IFS=, read -r -a hosts <<<"$value" ;;
    --local) local_count=$value ;;
    --port) port=$value ;;
    --host_devices) host_devices=$value ;;
    --directory) directory=$value ;;
    --env) environment+=("$value") ;;
    --python) python=$value ;;
    *) fail "no option $option" ;;
  esac
done
[ $# -gt 0 ] || fail 'no command after --'
if [ -n "$local_count" ]; then
  [ ${#hosts[@]} -eq 0 ] || fail 'either --hosts or --local'
  [[ $local_count =~ ^[1-9][0-9]*$ ]] || fail "--local $local_count: a number"
  count=$local_count address=127.0.0.1
  if [ -z "$port" ]; then
    port=$("$python" -c 'import socket
probe = socket.socket()
probe.bind(("127.0.0.1", 0))
print(probe.getsockname()[1])')
  fi
else
  count=${#hosts[@]}
  [ "$count" -gt 0 ] || fail 'either --hosts or --local is needed'
  address=${hosts[0]#*@} port=${port:-8476}
fi
if [ -n "$host_devices" ]; then
  environment+=("JAX_NUM_CPU_DEVICES=$host_devices")
fi

# What process $1 runs, as words for a shell.
command_of() {
  local index=$1
  shift
  local words=(env ${environment[@]+"${environment[@]}"})
  words+=("$python" -m t5score_jax "$@")
  words+=("--coordinator_address=$address:$port" "--process_count=$count")
  words+=("--process_index=$index")
  printf '%q ' "${words[@]}"
}

pid_file=/tmp/t5score-$$-$RANDOM
# The whole line that starts process $1: here, or on its host, where its number
# is kept so that a signal reaches it.
line_of() {
  local index=$1 command
  command="cd $(printf '%q' "$directory") && exec $(command_of "$@")"
  if [ -n "$local_count" ]; then
    echo "$command"
  else
    printf 'ssh -o BatchMode=yes %q %q' "${hosts[$index]}" \
      "echo \$\$ >$pid_file-$index; $command"
  fi
}

if [ -n "$dry_run" ]; then
  for ((index = 0; index < count; index++)); do
    echo "$(line_of "$index" "$@")"
  done
  exit 0
fi

# With job control, so that Ctrl-C reaches this script alone, which passes it on.
set -m
# A job in the background that reads from a terminal is halted.
[ ! -t 0 ] || exec </dev/null
pids=()
for ((index = 0; index < count; index++)); do
  line=$(line_of "$index" "$@")
  if [ "$index" -eq 0 ]; then
    bash -c "$line" &
  else
    bash -c "$line" > >(sed -u "s/^/[$index] /" >&2) 2>&1 </dev/null &
  fi
  pids+=($!)
done

asked=''
# Passes signal $1 on; the second time everything is killed.
pass_on() {
  local name=$1 index
  [ -z "$asked" ] || name=KILL
  asked=1
  for ((index = 0; index < count; index++)); do
    if [ -z "$local_count" ]; then
      ssh -o BatchMode=yes "${hosts[$index]}" \
        "kill -$name \$(cat $pid_file-$index)" </dev/null || true
    else
      kill "-$name" "${pids[$index]}" 2>/dev/null || true
    fi
  done
}
trap 'pass_on TERM' TERM
trap 'pass_on INT' INT

result=0
for pid in "${pids[@]}"; do
  code=0
  wait "$pid" || code=$?
  # A trap ends `wait` before the process has ended.
  while kill -0 "$pid" 2>/dev/null; do
    code=0
    wait "$pid" || code=$?
  done
  case $result:$code in
    *:0) ;;
    0:* | 75:* | 130:*) result=$code ;;
  esac
done
if [ -z "$local_count" ]; then
  for ((index = 0; index < count; index++)); do
    ssh -o BatchMode=yes "${hosts[$index]}" "rm -f $pid_file-$index" \
      </dev/null || true
  done
fi
exit "$result"
