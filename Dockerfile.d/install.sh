#!/bin/sh
# Run by the Dockerfile: /opt/coxswain becomes a Python environment with the packages of /opt/coxswain/requirements.txt and
# a place, /opt/coxswain/app, for our own. Bytecode is compiled here, since a read-only root keeps none.
set -eu
. "$(dirname "$0")/registry.sh"

/opt/uv/bin/uv venv --quiet --allow-existing --python python3 /opt/coxswain
/opt/uv/bin/uv pip install --quiet --no-cache --no-deps --compile-bytecode --python /opt/coxswain/bin/python \
  --requirements /opt/coxswain/requirements.txt
/opt/coxswain/bin/python -c 'import site; print(site.getsitepackages()[0])' | while read -r packages; do
  echo /opt/coxswain/app > "${packages}/coxswain.pth"
done
rm /opt/coxswain/.lock /opt/coxswain/.gitignore
