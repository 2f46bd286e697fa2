# SPDX-License-Identifier: Apache-2.0
"""Soak tests: long-running serving on real servers with real models; one module per part, started by `__main__`."""

import os

# Set before gRPC is imported: servers are forked during its calls, and its fork handlers crash 3 in 100 of them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
