# SPDX-License-Identifier: Apache-2.0
"""The soak: what serving has to stand for long, on real servers with real models. One module a part, in `__main__`."""

import os

# Before gRPC is imported: servers are started beside its calls, and its handlers of forks let 3 in 100 of them die.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
