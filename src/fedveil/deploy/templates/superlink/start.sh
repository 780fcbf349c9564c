#!/usr/bin/env bash
# Starts the SuperLink, with TLS and node authentication; Ctrl-C stops it. Registered sites survive a restart.
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec "$PYTHON" -m fedveil.deploy.superlink \
    --host "$HOST" --port "$PORT" \
    --ssl-ca-certfile "$here/ca.crt" --ssl-certfile "$here/server.crt" --ssl-keyfile "$here/server.key" \
    --enable-supernode-auth \
    --database "$here/state/superlink.db"
