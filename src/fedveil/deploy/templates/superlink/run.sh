#!/usr/bin/env bash
# ./run.sh NAME starts the run NAME with the settings in settings.txt, or goes on with it where it was interrupted.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$here/superlink.conf"
name="${1:?give the run a name, such as ./run.sh first}"
if [[ ! "$name" =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]]; then
    echo "run.sh: '$name' cannot name a run; use letters, digits, ., - and _" >&2
    exit 2
fi
if [[ "$here" == *[\'\"\\]* ]]; then
    echo "run.sh: $here has a quotation mark or a backslash in it, which Flower's settings cannot name; move the folder" >&2
    exit 2
fi
folder="$here/state/runs/$name"
[ -e "$folder/config.yaml" ] || "$PYTHON" -m fedveil deploy check "$here/settings.txt"
exec "$here/flwr.sh" run "$here/{{app}}" federation --stream \
    --run-config "settings='$here/settings.txt' folder='$folder'" "${@:2}"
