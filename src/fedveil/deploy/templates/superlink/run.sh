#!/usr/bin/env bash
# ./run.sh NAME starts the run NAME with the settings in settings.txt, or goes on with it where it was interrupted.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$here/superlink.conf"
name="${1:?give the run a name, such as ./run.sh first}"
folder="$here/state/runs/$name"
[ -e "$folder/config.yaml" ] || "$PYTHON" -m fedveil deploy check "$here/settings.txt"
exec "$here/flwr.sh" run "$here/{{app}}" federation --stream \
    --run-config "settings='$here/settings.txt' folder='$folder'" "${@:2}"
