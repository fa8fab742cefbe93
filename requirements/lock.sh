#!/usr/bin/env bash
# Resolve the workspace and write the hashed exports beside this file. Run through `make lock`.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}
"$uv" lock --quiet "$@"
export_for() { # NAME ARG...
  local out=requirements/$1.txt
  shift
  "$uv" export --quiet --frozen --no-header --no-emit-workspace --no-annotate "$@" -o "$out" >/dev/null
}
export_for dev --all-groups
for service in router agent mirror; do export_for "$service" --package "llmgw-$service" --no-dev; done
export_for controller --package llmgw-controller --extra server --no-dev
export_for cli --package llmgw-controller --no-dev
for extra in bootstrap weights engine-llamacpp; do
  "$uv" pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-deps --no-emit-index-url \
    "requirements/$extra.in" -o "requirements/$extra.txt" >/dev/null
done
"$uv" pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
  requirements/build.in -o requirements/build.txt >/dev/null
# Clients of the mirror, in tests only. Wheels only: nothing is built on the machine that runs the gate.
for generation in 0 1 2; do
  "$uv" pip compile --quiet --universal --python-version 3.11 --only-binary :all: --generate-hashes --no-header --no-annotate \
    --no-emit-index-url "requirements/hub-$generation.in" -o "requirements/hub-$generation.txt" >/dev/null
done
