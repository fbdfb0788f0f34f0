#!/bin/sh
# Run by the Dockerfile: uv into /opt/uv, and for each image the exact versions of its packages into /requirements.
# $1: packages to leave out, separated by spaces. Works in a folder with pyproject.toml and constraints.txt.
set -eu
. "$(dirname "$0")/registry.sh"

python3 -m venv /opt/uv
/opt/uv/bin/pip install --quiet --no-cache-dir --constraint constraints.txt uv
for package in $1; do
  echo "${package}; sys_platform == 'left-out'"
done > without.txt
mkdir /requirements
for extra in operator data train; do
  /opt/uv/bin/uv pip compile --quiet --no-cache --no-header --no-annotate --constraint constraints.txt \
    --override without.txt --extra "${extra}" --output-file "/requirements/${extra}.txt" pyproject.toml
done
touch --date=@0 /requirements/* # the same list is the same layer
