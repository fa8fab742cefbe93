#!/usr/bin/env bash
# `make proto-check`: style, compatibility with the last commit, stubs current.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
buf lint proto
buf format --diff --exit-code proto || { echo "proto: not formatted; try: buf format -w proto"; exit 1; }
# In a checkout the working tree is compared with HEAD; on a clean clone with HEAD's parent, where there is one.
against=HEAD
git diff --quiet HEAD -- proto && against=HEAD~1
compared="no commit to compare with: compatibility NOT checked"
if git cat-file -e "$against:proto/buf.yaml" 2>/dev/null; then
  was=$(mktemp -d)
  trap 'rm -rf "$was"' EXIT
  git archive "$against" proto | tar -x -C "$was"
  buf breaking proto --against "$was/proto"
  compared="compatible with $against"
fi
fresh=$(mktemp -d)
OUT=$fresh bash proto/generate.sh
for file in "$fresh"/llmgw/v1/*; do
  cmp --quiet "$file" "libs/llmgw-proto/src/llmgw/v1/$(basename "$file")" \
    || { rm -rf "$fresh"; echo "proto: $(basename "$file") is not current; try: make proto"; exit 1; }
done
rm -rf "$fresh"
echo "proto: lint, format and stubs are fine; $compared"
