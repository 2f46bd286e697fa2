# SPDX-License-Identifier: Apache-2.0
"""Reports on an artifact: an HTML page, and formats for CI jobs."""
