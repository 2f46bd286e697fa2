# SPDX-License-Identifier: Apache-2.0
"""Production readiness of an artifact; docs/checklist.md documents the items."""
