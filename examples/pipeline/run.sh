#!/usr/bin/env bash
# A pipeline on one machine: convert; build and verify; hand the artifact over; deploy it in another directory and, where
# this account is root and others can run trtspec, in another account. Usage: run.sh [RECIPE] [DIRECTORY]
set -euo pipefail
recipe=${1:-recipes/quickstart.yaml}
work=${2:-$(mktemp -d)}
here=$(cd "$(dirname "$0")" && pwd)
export TRTSPEC_CACHE="$work/build/cache" TRTSPEC_STATE="$work/build/state"
mkdir -p "$work/build" "$work/served"
chmod 755 "$work"

echo "1. Convert: this half of a build needs no engine and no GPU"
trtspec build "$recipe" --until convert

echo "2. Build the rest from the same store, and verify"
trtspec build "$recipe" --out "$work/build/artifact" --json >"$work/build/build.json"
# Text and acceptance do not depend on time; speed is measured on the machine that serves.
trtspec verify "$work/build/artifact" --max-tokens 16 --skip-gate min_speedup
trtspec report "$work/build/artifact" --results "$work/build/build.json" --format junit -o "$work/build/junit.xml"

echo "3. Hand over: the file in any way, the two digests through a channel that you trust"
tar -C "$work/build" -cf "$work/artifact.tar" artifact
manifest=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["manifest"])' "$work/build/build.json")
report=sha256:$(sha256sum "$work/build/artifact/reports/verify.json" | cut -d ' ' -f 1)

echo "4. Receive, check, deploy and ask"
as=()
if [ "$(id -u)" = 0 ]; then
  nobody=(setpriv --reuid nobody --clear-groups env "HOME=$work/served")
  chown nobody "$work/served"
  if "${nobody[@]}" sh -c 'cd "$HOME" && trtspec --version' >/dev/null 2>&1; then as=("${nobody[@]}"); fi
fi
"${as[@]}" "$here/receive.sh" "$work/artifact.tar" "$manifest" "$report" "$work/served"
echo "The pipeline's files are in $work"
