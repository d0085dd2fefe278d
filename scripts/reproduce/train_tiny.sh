#!/usr/bin/env bash
# Makes t5score-tiny, from collected judgments to the bundle that ships; or the
# same model at another size.
#
#   scripts/reproduce/train_tiny.sh DATA WORK ENCODER [SIZE [GENERATIVE CONTRASTIVE]]
#
# DATA     folder that scripts/prepare/tiny.py reads
# WORK     folder for everything in between; a second call goes on where the
#          first one ended, also in the middle of a stage
# ENCODER  folder of a sentence encoder of the BERT family: all-MiniLM-L6-v2 for
#          the model that ships
# SIZE     tiny (the default, 2.6 M parameters), small (8.1 M) or medium (26.4 M):
#          the network is models/t5score_SIZE.gin
# GENERATIVE CONTRASTIVE  steps of the two stages instead of the recipes'
#
# Needs the extras `train` and `parity`. PYTHON names the interpreter.
set -euo pipefail

if [ $# -lt 3 ] || [ $# -eq 5 ] || [ $# -gt 6 ]; then
  sed -n '/^#   /,/^$/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
  exit 2
fi
data=$(realpath "$1")
work=$(realpath -m "$2")
encoder=$(realpath "$3")
size=${4:-tiny}
run=$size${5:+-$5-$6}
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

# train STAGE ARRAYS INITIAL [STEPS]: with STEPS, four evaluations and a moving
# average over a tenth of them, as the recipe of the first stage has.
train() {
  local stage=$1 arrays=$2 initial=$3 steps=${4:-} shorter=()
  if [ -n "$steps" ]; then
    shorter=(--gin.TRAIN_STEPS="$steps" --gin.EVAL_EVERY=$(((steps + 3) / 4))
      --gin.EMA_DECAY="$(awk "BEGIN { print 1 - 10 / $steps }")")
  fi
  t5score train --gin_file="recipes/t5score_tiny_$stage.gin" \
    --gin_file="models/t5score_$size.gin" \
    --gin.MODEL_DIR="'$work/$run/$stage'" \
    --gin.ARRAYS="'$work/$arrays'" \
    --gin.VOCABULARY="'$work/vocabulary.model'" \
    --gin.VALIDATION="'$work/validation.jsonl'" \
    --gin.HELD_OUT="'$work/heldout'" \
    --gin.SETTINGS="{'name': 't5score-$size', 'max_length': 256}" \
    --gin.INITIAL_CHECKPOINT_PATH="'$work/$run/$initial'" "${shorter[@]}"
}

lengths=24,32,40,52,68,88,120,160

step records "$python" "$scripts/prepare/tiny.py" \
  --data "$data" --output "$work"
step vocabulary "$python" "$scripts/prepare/train_vocabulary.py" "$work/text.txt" \
  -o "$work/vocabulary.model" --size 4096 --lowercase
step groups "$python" "$scripts/prepare/cache_groups.py" "$work/groups.jsonl" \
  --vocabulary "$work/vocabulary.model" -o "$work/arrays" \
  --size 2 --lengths "$lengths"
step heldout "$python" "$scripts/prepare/cache_groups.py" "$work/heldout.jsonl" \
  --vocabulary "$work/vocabulary.model" -o "$work/heldout" \
  --size 8 --rating z --lengths 80
step "initial-$run" "$python" "$scripts/reproduce/initial_tiny.py" \
  --gin_file "models/t5score_$size.gin" \
  --vocabulary "$work/vocabulary.model" -o "$work/$run/initial" \
  --encoder "$encoder"
step "generative-$run" train generative arrays initial "${5:-}"
step annotations "$python" "$scripts/prepare/annotate_bertscore.py" \
  "$work/groups.jsonl" -o "$work/annotated.jsonl" \
  --encoder "$encoder" --layer 4 --share 0.5
step judged "$python" "$scripts/prepare/cache_groups.py" "$work/annotated.jsonl" \
  --vocabulary "$work/vocabulary.model" -o "$work/judged" \
  --size 8 --rating mixed --lengths "$lengths"
step "contrastive-$run" train contrastive judged generative "${6:-}"

# The stage whose best checkpoint agrees best with people on WMT17 is shipped.
best() {
  "$python" -c '
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
print(max(line["wmt17/pearson"] for line in lines if "wmt17/pearson" in line))
' "$work/$run/$1/metrics.jsonl"
}

winner=generative
if awk "BEGIN { exit !($(best contrastive) > $(best generative)) }"; then
  winner=contrastive
fi
bundles=$work/$run/bundles
mkdir -p "$bundles"
for stage in generative contrastive; do
  step "bundle-$stage-$run" t5score convert --to bundle \
    --dtype bfloat16 "$work/$run/$stage" "$bundles/$stage"
done
echo "== best on WMT17: $winner, in $bundles/$winner"
"$python" "$scripts/reproduce/measure_wmt20.py" "$data" "generative=$bundles/generative" \
  "contrastive=$bundles/contrastive" --scores "$work/scores"
