#!/usr/bin/env bash
# `make proto`: stubs and their types from proto/, into libs/llmgw-proto. OUT overrides the target (for the check).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-libs/llmgw-proto/src}
PATH="$PWD/.venv/bin:$PATH"
python -m grpc_tools.protoc -I proto --python_out="$out" --grpc_python_out="$out" --mypy_out=quiet:"$out" \
  --mypy_grpc_out=quiet:"$out" proto/llmgw/v1/*.proto
