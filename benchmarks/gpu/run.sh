#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs what needs a GPU with the machine's own Python: benchmarks/gpu/run.sh --help
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
    echo "no $python on the PATH; set PYTHON to one that has torch" >&2
    exit 1
fi
exec "$python" -m benchmarks.gpu "$@"
