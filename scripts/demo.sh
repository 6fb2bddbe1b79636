#!/usr/bin/env bash
# Translates and searches with the built-in models, and trains a small classifier; `make demo` calls this.
set -euo pipefail
cd "$(dirname "$0")/.."

regard="${BIN:-.venv/bin}/regard"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

translate() { # MODEL SENTENCES
    local translations
    translations=$(printf '%s\n' "$2" | "$regard" translate -m "$1")
    while IFS= read -r source <&3 && IFS= read -r translation <&4; do
        printf '  %s\n  -> %s\n\n' "$source" "$translation"
    done 3<<<"$2" 4<<<"$translations"
}

echo "English to German:"
translate en-de 'The weather is nice today.
Where is the nearest train station?
My sister has been living in Berlin for three years.
Mr President, I would like to thank the Commission for its report.
Click "Save" to keep your changes in %s.
The rent is 1,250 euros a month.
Please send your questions to info@example.org.'

echo "German to English:"
translate de-en 'Guten Morgen! Wie geht es dir?
Ich hätte gern eine Tasse Kaffee.
Wenn es morgen regnet, bleiben wir zu Hause.
Die Datei konnte nicht geöffnet werden.'

echo "Scores of en-de on the Tatoeba test set, which it was not trained on:"
"$regard" evaluate --source data/tatoeba/test.en.xz --reference data/tatoeba/test.de.xz

echo
echo "Search by meaning: the built-in encoder reads the folder docs, and finds what answers a question, in English or German:"
"$regard" embed docs --index "$work/docs.index" 2>"$work/log" || { cat "$work/log"; exit 1; }
for question in "Does my text leave my computer?" "Welche Sprachen erkennt es?"; do
    printf '\n  %s\n' "$question"
    COLUMNS=100 "$regard" search "$work/docs.index" "$question" -k 1 | sed 's/^/  /'
done

echo
echo "A classifier from 300 questions of bank customers (data/banking77), from the built-in encoder; scored on 200 others:"
"$regard" train data/banking77/train.tsv --test data/banking77/test.tsv --out "$work/questions" --set train.epochs=2 \
    >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
sed -n 's/^scores  /  /p' "$work/log"
printf '%s\n' 'How can I pick a new PIN?' 'My wallet is gone, and the card was in it.' 'Is my 12-year-old son allowed to have one?' |
    "$regard" classify -m "$work/questions" 2>"$work/log" | sed 's/^/  /' || { cat "$work/log"; exit 1; }

echo
echo "What next:"
printf '  %-58s %s\n' \
    "$regard translate 'Your own sentence.'" "also from standard input or -i FILE; -m de-en for German" \
    "$regard serve" "the page and the API on http://127.0.0.1:8000" \
    "$regard explain -o page.html 'It was too tired.'" "attention, candidates, beam and saliency" \
    "$regard train your.en your.de" "a translation model from your own text" \
    "$regard train your-table.tsv" "a classifier from a table of labels and texts"
echo
echo "The paper, section by section, beside the code that runs it: docs/paper.md (or in Jupyter: docs/paper.ipynb)"
