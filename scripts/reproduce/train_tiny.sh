#!/usr/bin/env bash
# Makes t5score-tiny, from collected judgments to the bundle that ships.
#
#   scripts/reproduce/train_tiny.sh DATA WORK ENCODER
#
# DATA     folder that scripts/prepare/tiny.py reads
# WORK     folder for everything in between; a second call goes on where the
#          first one ended, also in the middle of a stage
# ENCODER  folder of a sentence encoder of the BERT family: all-MiniLM-L6-v2 for
#          the model that ships
#
# Needs the extras `train` and `parity`. PYTHON names the interpreter.
set -euo pipefail

if [ $# -ne 3 ]; then
  sed -n '/^#   /,/^$/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
  exit 2
fi
data=$(realpath "$1")
work=$(realpath -m "$2")
encoder=$(realpath "$3")
python=${PYTHON:-python3}
scripts=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
mkdir -p "$work"

# Runs a step unless it has been done: step NAME COMMAND...
step() {
  local name=$1
  shift
  if [ ! -e "$work/.done-$name" ]; then
    echo "== $name"
    "$@"
    touch "$work/.done-$name"
  fi
}

train() {
  local recipe=$1 folder=$2 arrays=$3 initial=$4
  "$python" -m t5score_jax train --gin_file="recipes/$recipe" \
    --gin.MODEL_DIR="'$work/$folder'" \
    --gin.ARRAYS="'$work/$arrays'" \
    --gin.VOCABULARY="'$work/vocabulary.model'" \
    --gin.VALIDATION="'$work/validation.jsonl'" \
    --gin.INITIAL_CHECKPOINT_PATH="'$work/$initial'"
}

lengths=24,32,40,52,68,88,120,160

step records "$python" "$scripts/prepare/tiny.py" \
  --data "$data" --output "$work"
step vocabulary "$python" "$scripts/prepare/train_vocabulary.py" "$work/text.txt" \
  -o "$work/vocabulary.model" --size 4096 --lowercase
step groups "$python" "$scripts/prepare/cache_groups.py" "$work/groups.jsonl" \
  --vocabulary "$work/vocabulary.model" -o "$work/arrays" \
  --size 2 --lengths "$lengths"
step initial "$python" "$scripts/reproduce/initial_tiny.py" \
  --vocabulary "$work/vocabulary.model" -o "$work/initial" \
  --encoder "$encoder"
step generative train t5score_tiny_generative.gin generative arrays initial
step annotations "$python" "$scripts/prepare/annotate_bertscore.py" \
  "$work/groups.jsonl" -o "$work/annotated.jsonl" \
  --encoder "$encoder" --layer 4 --share 0.5
step judged "$python" "$scripts/prepare/cache_groups.py" "$work/annotated.jsonl" \
  --vocabulary "$work/vocabulary.model" -o "$work/judged" \
  --size 8 --rating mixed --lengths "$lengths"
step contrastive train t5score_tiny_contrastive.gin contrastive judged generative

# The stage whose best checkpoint agrees best with people on WMT17 is shipped.
best() {
  "$python" -c '
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
print(max(line["wmt17/pearson"] for line in lines if "wmt17/pearson" in line))
' "$work/$1/metrics.jsonl"
}

winner=generative
if awk "BEGIN { exit !($(best contrastive) > $(best generative)) }"; then
  winner=contrastive
fi
mkdir -p "$work/bundles"
for stage in generative contrastive; do
  step "bundle-$stage" "$python" -m t5score_jax convert --to bundle \
    --dtype bfloat16 "$work/$stage" "$work/bundles/$stage"
done
echo "== best on WMT17: $winner, in $work/bundles/$winner"
"$python" "$scripts/reproduce/measure_wmt20.py" "$data" "$work/bundles/generative" \
  "$work/bundles/contrastive" --scores "$work/scores"
