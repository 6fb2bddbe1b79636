#!/usr/bin/env bash
# Makes one direction of the built-in model: teacher, its translations of the training text, student, weights in int8, scores.
#   scripts/builtin.sh en de DATA OUT
# DATA holds the text (docs/builtin-model.md). Run it again after an interruption: it goes on where it was.
# TEACHER and STUDENT may hold more arguments for the two trainings, such as "--set train.minutes=60"; JOBS says how many
# corpora the teacher translates at once, REGARD and PYTHON how the two are called.
set -euo pipefail
if [ $# -ne 4 ]; then
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
source=$1 target=$2 data=$(cd "$3" && pwd) out=$4
recipes=$(cd "$(dirname "$0")/.." && pwd)/recipes/builtin
regard=${REGARD:-regard}
text=$out/text
mkdir -p "$text/distilled" "$text/noised"
out=$(cd "$out" && pwd) text=$out/text
for folder in "$data"/*/; do
    ln -sfn "${folder%/}" "$text/$(basename "$folder")"
done
languages=(--set "data.source=$source" --set "data.target=$target" --set "data.root=$text")

corpora=()
# A small model learns little from still more of one kind of text: four parts of Europarl are enough for it.
for file in "$text"/tatoeba/train."$source".xz "$text"/software/*."$source".xz "$text"/bible/train."$source".xz \
    "$text"/europarl/train-0[0-3]."$source".xz; do
    [ ! -e "$file" ] || corpora+=("$(basename "$(dirname "$file")")/$(basename "$file" ".$source.xz")")
done

say() { printf '\n== %s (%s)\n' "$1" "$(date +%H:%M:%S)"; }

scores() { # NAME MODEL
    for set in news/newstest2013 news/newstest2014 talks/tst2013 talks/tst2014 tatoeba/test europarl/test multi30k/test_2016_flickr; do
        local scored=$out/scores/$1-${set//\//-}.json
        if [ -e "$data/$set.$source.xz" ] && [ ! -e "$scored" ]; then
            mkdir -p "$out/scores"
            $regard evaluate -m "$2" --source "$data/$set.$source.xz" --reference "$data/$set.$target.xz" --json >"$scored.tmp"
            mv "$scored.tmp" "$scored"
            printf '%-10s %-28s BLEU %s\n' "$1" "$set" "$(grep -m 1 '"score"' "$scored" | tr -dc '0-9.' | cut -c 1-5)"
        fi
    done
}

say "teacher"
[ -e "$out/teacher/model" ] || $regard train "$recipes/teacher.toml" "${languages[@]}" --out "$out/teacher" --resume ${TEACHER:-}
scores teacher "$out/teacher" & # beside what comes next
scoring=($!)

say "the teacher's translations"
distill() { # CORPUS, as folder/name
    local made=$text/distilled/${1//\//-}
    [ -e "$made.$target" ] || $regard augment --distill -m "$out/teacher" \
        -i "$text/$1.{$source,$target}.xz" -o "$made.{$source,$target}" --resume
    local noised=$text/noised/${1//\//-}
    case $1 in europarl/train-0[1-3]) return ;; esac # one part is noise enough
    [ -e "$noised.$target" ] || $regard augment --noise -i "$made.{$source,$target}" -o "$noised.{$source,$target}" --resume
}
export -f distill
export regard out text source target
# Several at once, since one process does not keep a GPU busy while it reads and writes text.
printf '%s\n' "${corpora[@]}" | xargs -P "${JOBS:-1}" -I '{}' bash -euo pipefail -c 'distill "$1"' distill '{}'

say "student"
[ -e "$out/student/model" ] || $regard train "$recipes/student.toml" "${languages[@]}" --out "$out/student" --resume ${STUDENT:-}
scores student "$out/student" &
scoring+=($!)

say "int8"
[ -e "$out/$source-$target" ] || $regard export --to bundle --weights int8 -m "$out/student" -o "$out/$source-$target"
for process in "${scoring[@]}"; do wait "$process"; done
scores int8 "$out/$source-$target"
${PYTHON:-python3} "$(dirname "$recipes")/../scripts/builtin_card.py" "$out/$source-$target" "$out/scores"
du -sh "$out/$source-$target"
