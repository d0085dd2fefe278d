# Sourced by the train_*.sh beside it, once they have set `data`, the folder of
# judgments, and `work`, which holds everything in between.
# shellcheck shell=bash disable=SC2034
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

t5score() {
  "$python" -m t5score_jax "$@"
}

# As the verbs that read records take them.
wmt21=("$data/wmt21_da_to-en.tsv.gz" reference=ref_A hypothesis=hyp source=src
  segment=sid document=doc language_pair=lp)
wmt20=("$data/wmt20_mqm_da.zh-en.tsv.gz" reference=ref_A hypothesis=hyp source=src
  segment=line language_pair=lp)
da=("$data/wmt15-17_da.tsv.gz" reference=ref hypothesis=hyp source=src
  segment=sid language_pair=lp quoting=csv)
