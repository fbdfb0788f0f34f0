#!/bin/sh
# Installs from Debian (or Ubuntu) what the nodes of the test cluster and the image builds need; silent when all is there.
# It changes the machine: run it where that is welcome, such as in CI. `make cluster` only says what is missing.
set -eu

packages="buildah containerd containernetworking-plugins debootstrap iproute2 iptables openssl runc util-linux"

missing=""
for package in $packages; do
    dpkg-query --show --showformat '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

echo "installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086  # one word a package
if ! { apt-get update && apt-get install --yes --no-install-recommends $missing; } >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
