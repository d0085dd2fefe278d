#!/usr/bin/env bash
# Makes e5-da, from collected judgments to the folder that ships.
#
#   scripts/reproduce/train_e5_da.sh DATA WORK
#
# DATA     folder with mlqe-pe_da, wmt15-17_da, wmt21_da_to-en and
#          wmt20_mqm_da.{zh-en,en-de} (.tsv.gz)
# WORK     folder for everything in between; a second call goes on where the
#          first one ended, also in the middle of training
#
# WMT17, WMT20 and the test sets of MLQE-PE are held out; its development sets
# choose the checkpoint. e5-small is that of the extra `encoders`. PYTHON names
# the interpreter.
set -euo pipefail

if [ $# -ne 2 ]; then
  sed -n '/^#   /,/^$/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
  exit 2
fi
data=$(realpath "$1")
work=$(realpath -m "$2")
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

mlqe=("$data/mlqe-pe_da.tsv.gz" hypothesis=mt source=src segment=index
  language_pair=lp)
wmt20_de=("$data/wmt20_mqm_da.en-de.tsv.gz" reference=ref_A hypothesis=hyp
  source=src segment=line language_pair=lp)

texts() {
  "$python" - "$1" "$2" <<'PYTHON'
import json
import sys

texts = {}
with open(sys.argv[1], encoding='utf-8') as lines:
  for line in lines:
    record = json.loads(line)
    for name in ('source', 'hypothesis'):
      texts[' '.join(record[name].split())] = None
with open(sys.argv[2], 'w', encoding='utf-8') as out:
  out.writelines(f'{text}\n' for text in texts)
PYTHON
}

step pairs "$python" "$scripts/reproduce/e5_da_pairs.py" \
  --input "${mlqe[@]}" rating=z_mean where:split=train \
  --input "${da[@]}" rating=da_z where:year=2015,2016 \
  --input "${wmt21[@]}" rating=da_z \
  --held-out "${da[@]}" where:year=2017 \
  --held-out "${wmt20[@]}" --held-out "${wmt20_de[@]}" \
  --held-out "${mlqe[@]}" where:split=dev,test20,test21 -o "$work/pairs.jsonl"
step texts texts "$work/pairs.jsonl" "$work/texts.txt"
step initial "$python" "$scripts/reproduce/small_encoder.py" e5-small \
  --layers 6 --vocabulary 32000 --texts "$work/texts.txt" --standardise 4000 \
  -o "$work/initial"
t5score fit --gin_file=recipes/e5_da.gin \
  --gin.ENCODER_PATH="'$work/initial'" --input "$work/pairs.jsonl" \
  --ratings target --validation "${mlqe[@]}" target=z_mean where:split=dev \
  --work "$work/fit"
step int8 t5score convert --to estimator --dtype int8 "$work/fit/model" \
  "$work/e5-da"
"$python" "$scripts/reproduce/measure_wmt20.py" "$data" --lexical chrf \
  "$work/e5-da"
