# SPDX-License-Identifier: Apache-2.0
"""`python -m trtspec.serving.gateway --config FILE`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trtspec.core.errors import TrtspecError


def main() -> int:
    """Run the gateway until it is stopped; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m trtspec.serving.gateway", description="OpenAI-compatible gateway for Triton"
    )
    parser.add_argument(
        "--config", type=Path, required=True, help="configuration written by trtspec.serving.gateway.command"
    )
    arguments = parser.parse_args()
    try:
        from trtspec.serving.gateway.config import load_config
        from trtspec.serving.gateway.server import serve

        serve(load_config(arguments.config))
    except TrtspecError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
