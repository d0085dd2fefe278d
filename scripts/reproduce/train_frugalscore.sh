#!/usr/bin/env bash
# Makes frugalscore-tiny, from collected judgments to the folder that ships.
#
#   scripts/reproduce/train_frugalscore.sh DATA WORK ENCODER
#
# DATA     folder with wmt15-17_da, wmt20_mqm_da.zh-en and wmt21_da_to-en (.tsv.gz)
# WORK     folder for everything in between; a second call goes on where the
#          first one ended, also in the middle of a stage
# ENCODER  folder of the teacher's encoder, of the BERT family: all-MiniLM-L6-v2
#          for the model that ships
#
# WMT17 to English is held out of every phase, WMT16 of phase 2 and chooses the
# checkpoint of phase 3. PYTHON names the interpreter.
set -euo pipefail

if [ $# -ne 3 ]; then
  sed -n '/^#   /,/^$/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
  exit 2
fi
data=$(realpath "$1")
work=$(realpath -m "$2")
encoder=$(realpath "$3")
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

train() {
  local recipe=$1 folder=$2 initial=$3 arrays=$4 held_out=$5
  t5score train --gin_file="recipes/$recipe" \
    --gin.MODEL_DIR="'$work/$folder'" \
    --gin.TOKENIZER="'$work/initial'" \
    --gin.INITIAL_CHECKPOINT_PATH="'$work/$initial'" \
    --gin.ARRAYS="'$work/$arrays'" \
    --gin.VALIDATION_ARRAYS="'$work/$held_out'"
}

# Phase 1.
step pairs t5score pairs --input "${wmt21[@]}" --input "${wmt20[@]}" \
  --held-out "${da[@]}" 'where:year=2016,2017' \
  --per-source 10 --denoise -o "$work/pairs"
step annotated t5score annotate "$work/pairs" -m bertscore \
  --option "model=$encoder" --option layer=4 --option max_length=128 \
  -o "$work/annotated"
step initial "$python" "$scripts/reproduce/initial_miniature.py" "$encoder" \
  -o "$work/initial" --texts "$work/pairs/texts.txt.gz" --limit 6000 \
  --width 128 --vocabulary 8000 --layer 4 --positions 192
step arrays "$python" "$scripts/prepare/cache_pairs.py" "$work/annotated" \
  --tokenizer "$work/initial" --max-length 192 --standardise \
  --held-out-share 0.01 -o "$work/arrays"

# Phase 2.
step distilled train frugalscore_tiny.gin distilled initial \
  arrays/train arrays/held_out

# Phase 3.
step judged "$python" "$scripts/prepare/cache_pairs.py" \
  --input "${wmt21[@]}" --input "${wmt20[@]}" \
  --input "${da[@]}" where:year=2015 'where:lp=*-en' --rating da_z \
  --tokenizer "$work/initial" --max-length 192 --standardise -o "$work/judged"
step wmt16 "$python" "$scripts/prepare/cache_pairs.py" \
  --input "${da[@]}" where:year=2016 'where:lp=*-en' --rating da_z \
  --tokenizer "$work/initial" --max-length 192 --standardise -o "$work/wmt16"
step tuned train frugalscore_tiny_human.gin tuned distilled judged wmt16

for stage in distilled tuned; do
  step "folder-$stage" t5score convert --to hf --dtype bfloat16 \
    "$work/$stage" "$work/models/$stage"
done
t5score retention --input "${da[@]}" where:year=2017 'where:lp=*-en' --human da_z \
  --teacher "bertscore:model=$encoder,layer=4,max_length=128" \
  --students "distilled=$work/models/distilled" "tuned=$work/models/tuned" \
  --beside "moverscore:model=$encoder,idf=$work/pairs/texts.txt.gz" \
  t5score-tiny chrf bleu --speed-against moverscore
