#!/usr/bin/env bash
# Cuts a folder into files of at most 16 MB, for ways that take no large files, and puts it together again.
#   scripts/parts.sh split FOLDER PARTS     PARTS/000, PARTS/001, ... and PARTS/SHA256SUMS
#   scripts/parts.sh join PARTS FOLDER      checks every part first
set -euo pipefail
case ${1-} in
split)
    mkdir -p "$3"
    tar -C "$2" -cf - . | split -b 16000000 -d -a 3 - "$3/"
    (cd "$3" && sha256sum [0-9]* >SHA256SUMS)
    ;;
join)
    (cd "$2" && sha256sum --quiet -c SHA256SUMS)
    mkdir -p "$3"
    cat "$2"/[0-9]* | tar -C "$3" -xf -
    ;;
*)
    sed -n '2,4s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
