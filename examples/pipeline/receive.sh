#!/usr/bin/env bash
# The serving side of run.sh: unpack an artifact, deploy it if it has the given digests, ask it once, and stop it.
# Usage: receive.sh FILE.tar MANIFEST REPORT DIRECTORY, with two digests sha256:...
set -euo pipefail
file=$1 manifest=$2 report=$3
export TRTSPEC_CACHE="$4/cache" TRTSPEC_STATE="$4/state"
cd "$4"
tar -xf "$file"

# The report's results count, because its digest came by a trusted way; this machine would measure the rest otherwise.
trtspec deploy artifact --name pipeline --detach --manifest "$manifest" --trust-report "$report" \
  --skip-gate min_speedup --json >deployed.json
trap 'trtspec stop pipeline' EXIT
url=$(python3 -c 'import json; print(json.load(open("deployed.json"))["endpoints"]["http"])')
curl --fail --silent --show-error "$url/v2/models/ensemble/generate" \
  -d '{"text_input": "The story begins", "max_tokens": 16}'
echo
