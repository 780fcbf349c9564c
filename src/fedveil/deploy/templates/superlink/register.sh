#!/usr/bin/env bash
# Registers the public keys in nodes/ with the running SuperLink; those that it knows already are left alone.
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
mkdir -p "$here/state/registered"
for key in "$here"/nodes/*.pub; do
    name="$(basename "$key" .pub)"
    if cmp -s "$key" "$here/state/registered/$name.pub"; then
        continue
    fi
    "$here/flwr.sh" supernode register "$key" --name "$name" || exit 1
    cp "$key" "$here/state/registered/$name.pub"
done
