# SPDX-License-Identifier: Apache-2.0
"""What a server does for long and under faults; `python -m benchmarks.soak`."""

import os

# Before gRPC is imported: servers are started beside its calls, and its handlers of forks let 3 in 100 of them die.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
