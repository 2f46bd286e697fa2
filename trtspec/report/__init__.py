# SPDX-License-Identifier: Apache-2.0
"""Reports on an artifact as an HTML page and in formats for CI jobs; also advice, readiness checks and monitoring."""
