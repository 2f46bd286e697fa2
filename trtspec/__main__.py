# SPDX-License-Identifier: Apache-2.0
"""Entry point of `python -m trtspec`."""

from trtspec.cli.app import main

main()
