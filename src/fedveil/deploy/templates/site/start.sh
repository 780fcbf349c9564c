#!/usr/bin/env bash
# Starts this site's SuperNode: it calls the SuperLink over TLS, proves who it is by node.key, and waits for work.
set -euo pipefail
umask 077
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$here/site.conf"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_HOME="$here/state/flwr" FEDVEIL_APPROVED_APPS="$here/approved.txt" FEDVEIL_PARTS="$PARTS"
mkdir -p "$FLWR_HOME"
cd "$here"
exec "$PYTHON" -m fedveil.deploy.supernode \
    --superlink "$SUPERLINK" --root-certificates "$here/ca.crt" \
    --auth-supernode-private-key "$here/node.key" \
    --host 127.0.0.1 --port "$LOCAL_PORT" \
    --node-config "$here/site.toml"
