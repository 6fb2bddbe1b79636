#!/usr/bin/env bash
# Trains a small English-German model on the sentences in data/tatoeba and translates with it. `make demo` calls this.
# A second call goes on where the first was stopped, and only translates where it was finished.
set -euo pipefail
cd "$(dirname "$0")/.."

regard="${BIN:-.venv/bin}/regard"
run=runs/demo

if [ -f "$run/report.html" ]; then
    echo "$run holds a finished model. To train it anew, remove the folder first."
else
    echo "Training a small English-German model for 8 minutes. Ctrl-C saves; 'make demo' goes on from there."
    "$regard" train recipes/tatoeba.toml --set train.minutes=8 --out "$run" --resume
fi

sentences='Good morning!
Where is the nearest train station?
My sister has been living in Berlin for three years.
I would like to drink a cup of coffee.
Tom did not know what he should say.
If it rains tomorrow, we will stay at home.'

echo
echo "Sentences translated by the new model:"
translations=$(printf '%s\n' "$sentences" | "$regard" translate -m "$run")
while IFS= read -r source <&3 && IFS= read -r translation <&4; do
    printf '  %s\n  -> %s\n\n' "$source" "$translation"
done 3<<<"$sentences" 4<<<"$translations"

echo "What next:"
printf '  %-58s %s\n' \
    "$regard translate -m $run 'Your own sentence.'" "" \
    "$regard info $run" "what the model is and how it was trained" \
    "$run/report.html" "curves, samples and scores, for the browser" \
    "$regard train your.en your.de" "a model of your own text"
