#!/usr/bin/env bash
# `make hub-clients`: one generation of the Hub's client in a virtual environment of its own; three cannot share one.
set -euo pipefail
cd "$(dirname "$0")/.."
generation=$1
venv=.venv-hub-$generation
[ -x .venv/bin/uv ] || { printf 'hub-clients: the workspace is not set up\n  try: make setup\n' >&2; exit 1; }

# What a broken run left may miss a package; made anew it costs a second.
rm -rf "$venv"
echo "hub-clients: installing requirements/hub-$generation.txt into $venv"
.venv/bin/uv venv --quiet --python .venv/bin/python "$venv"
.venv/bin/uv pip sync --quiet --python "$venv/bin/python" --require-hashes --only-binary :all: "requirements/hub-$generation.txt"
touch "$venv/.installed"
