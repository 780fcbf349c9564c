#!/usr/bin/env bash
# Starts a run with the settings in settings.txt, or goes on with the one that was interrupted.
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/flwr.sh" run "$here/{{app}}" federation "$@"
