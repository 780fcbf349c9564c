# Read by the scripts beside it.
set -euo pipefail
umask 077
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$here/superlink.conf"
mkdir -p "$here/state"
# Nothing outside the federation is called, and no package is fetched for a run.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_HOME="$here/state/flwr"
mkdir -p "$FLWR_HOME"
if ! found="$(command -v "$PYTHON")"; then
    echo "superlink.conf: PYTHON is '$PYTHON', and there is no such program; name the Python that has fedveil" >&2
    exit 2
fi
PATH="$(cd "$(dirname "$found")" && pwd):$PATH"
