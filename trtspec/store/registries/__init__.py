# SPDX-License-Identifier: Apache-2.0
"""Artifacts in registries and in files: push, pull and list (docs/registries.md, docs/decisions/020-registries.md)."""
