#!/usr/bin/env bash
# Makes minilm-da, from collected judgments to the folder that ships.
#
#   scripts/reproduce/train_minilm_da.sh DATA WORK
#
# DATA     folder with wmt15-17_da, wmt20_mqm_da.zh-en and wmt21_da_to-en (.tsv.gz)
# WORK     folder for everything in between; a second call goes on where the
#          first one ended, also in the middle of a stage
#
# WMT17 and WMT20 are held out of all phases; a part of WMT15 and WMT16 chooses
# the checkpoint of phase 2. all-MiniLM-L6-v2 and e5-small are those of the extra
# `encoders`. PYTHON names the interpreter.
set -euo pipefail

if [ $# -ne 2 ]; then
  sed -n '/^#   /,/^$/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
  exit 2
fi
data=$(realpath "$1")
work=$(realpath -m "$2")
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

arrays() {
  local folder=$1
  shift
  "$python" "$scripts/prepare/cache_pairs.py" "$@" --tokenizer minilm \
    --max-length 128 --standardise -o "$work/$folder"
}

train() {
  local recipe=$1 folder=$2 arrays=$3
  shift 3
  t5score train --gin_file="recipes/$recipe" --gin.MODEL_DIR="'$work/$folder'" \
    --gin.ARRAYS="'$work/$arrays/train'" \
    --gin.VALIDATION_ARRAYS="'$work/$arrays/held_out'" "$@"
}

# Pairs of two or more judgments are given twice, so that they are taken first.
step pairs "$python" "$scripts/reproduce/minilm_da_pairs.py" \
  --input "${wmt21[@]}" --input "${wmt21[@]}" where:n=2,3,4,6 \
  --held-out "${da[@]}" where:year=2017 --held-out "${wmt20[@]}" \
  -o "$work/pairs.jsonl"
step compare-arrays arrays pairs --input "$work/pairs.jsonl" --rating target \
  --held-out-share 0.02
step rated-arrays arrays ratings --input "${da[@]}" where:year=2015,2016 \
  'where:lp=*-en' --rating da_z --held-out-share 0.15

step compared train minilm_da_pairs.gin compared pairs
step rated train minilm_da.gin rated ratings \
  --gin.INITIAL_CHECKPOINT_PATH="'$work/compared'"

step second t5score convert --to hf "$work/rated" "$work/second"
step teachers "$python" "$scripts/reproduce/minilm_da_teach.py" \
  "$work/pairs.jsonl" --teacher "frugalscore:model=$work/second" \
  --teacher bertscore:model=e5-small -o "$work/taught.jsonl"
step teachers-arrays arrays teachers --input "$work/taught.jsonl" \
  --rating target --held-out-share 0.02
step taught train minilm_da_taught.gin taught teachers \
  --gin.VALIDATION_ARRAYS="'$work/ratings/held_out'" \
  --gin.INITIAL_CHECKPOINT_PATH="'$work/rated'"
step third t5score convert --to hf "$work/taught" "$work/third"

step float32 "$python" "$scripts/reproduce/mean_weights.py" \
  "$work/second" "$work/third" -o "$work/float32"
step int8 t5score convert --to hf --dtype int8 "$work/float32" "$work/minilm-da"
"$python" "$scripts/reproduce/measure_wmt20.py" "$data" --sets wmt17,zh-en \
  --lexical chrf "$work/minilm-da" "float32=$work/float32" frugalscore-tiny \
  bertscore:model=minilm,layer=4
