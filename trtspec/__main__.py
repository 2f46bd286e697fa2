# SPDX-License-Identifier: Apache-2.0
"""`python -m trtspec`."""

from trtspec.cli.app import main

main()
