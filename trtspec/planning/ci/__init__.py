# SPDX-License-Identifier: Apache-2.0
"""Extension: CI systems for which `trtspec ci` writes a pipeline, one module each, with its function in `SYSTEM`."""
