#!/usr/bin/env bash
# ./run.sh NAME starts the run NAME with the settings in settings.txt, or goes on with it where it was interrupted.
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
name="${1:?give the run a name, such as ./run.sh first}"
exec "$here/flwr.sh" run "$here/{{app}}" federation --stream \
    --run-config "settings='$here/settings.txt' folder='$here/state/runs/$name'" "${@:2}"
