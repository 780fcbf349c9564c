#!/usr/bin/env bash
# Flower's own command, connected to this SuperLink, such as: ./flwr.sh ls, ./flwr.sh supernode ls, ./flwr.sh stop RUN
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
case "$HOST" in
0.0.0.0) address="127.0.0.1" ;;
::) address="[::1]" ;;
*:*) address="[$HOST]" ;;
*) address="$HOST" ;;
esac
cat >"$FLWR_HOME/config.toml" <<END
[superlink]
default = "federation"

[superlink.federation]
address = "$address:$PORT"
root-certificates = "$here/ca.crt"
END
cd "$here/state"
exec flwr "$@"
