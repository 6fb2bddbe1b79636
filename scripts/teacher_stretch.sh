#!/usr/bin/env bash
# Trains the teacher of a built-in model for one stretch of time, and makes of it what a later stretch needs.
#   scripts/teacher_stretch.sh SOURCE TARGET TEXT OUT [MINUTES [INIT]]
# TEXT is a folder as `python -m scripts.builtin ... --until text` leaves it in OUT/text. INIT is the model of an earlier stretch
# (OUT/fp16 there): the optimizer starts anew from its weights, warms up to a lower peak and decays to 0 again, so that every
# stretch ends with a finished model. Without INIT a stretch that was interrupted goes on from its last checkpoint.
#   OUT/teacher   the run      OUT/fp16   the model, half as large      OUT/parts   the same in files of 16 MB (scripts/parts.sh)
#   OUT/scores    BLEU on newstest2014, where TEXT has it, and the checks
# More settings go into TRAIN: TRAIN="--set train.batch_tokens=50000". PYTHON says which Python.
set -euo pipefail
if [ $# -lt 4 ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
source=$1 target=$2 text=$(cd "$3" && pwd) out=$4 minutes=${5:-18} init=${6:-}
python=${PYTHON:-python3}
mkdir -p "$out/scores"
out=$(cd "$out" && pwd)
[ -z "$init" ] || init=$(cd "$init" && pwd)
cd "$(dirname "$0")/.."
settings=(--set "data.source=$source" --set "data.target=$target" --set "data.root=$text" --set "train.minutes=$minutes")
cp recipes/builtin/teacher.toml "$out/recipe.toml"
if [ -n "$init" ]; then
    sed -i '/^vocab_size/d' "$out/recipe.toml" # that of the model
    settings+=(--set "train.init=$init" --set train.lr=6e-4 --set train.warmup=500 --set model.dropout=0.2 --set train.seed=2)
fi
if [ ! -e "$out/teacher/model" ]; then
    # shellcheck disable=SC2086
    $python -m regard train "$out/recipe.toml" "${settings[@]}" --out "$out/teacher" --resume ${TRAIN:-}
fi
[ -e "$out/fp16" ] || $python -m regard export --to bundle --weights fp16 -m "$out/teacher" -o "$out/fp16"
[ -e "$out/parts/SHA256SUMS" ] || scripts/parts.sh split "$out/fp16" "$out/parts"
test=$text/news/newstest2014
if [ -e "$test.$source.xz" ]; then
    $python -m regard evaluate -m "$out/teacher" --source "$test.$source.xz" --reference "$test.$target.xz" --json >"$out/scores/newstest2014.json"
    head -c 600 "$out/scores/newstest2014.json"
fi
$python -m benchmarks.checks -m "$out/teacher" | tee "$out/scores/checks.md"
