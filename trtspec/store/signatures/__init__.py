# SPDX-License-Identifier: Apache-2.0
"""Signatures of artifacts: Sigstore bundles of in-toto statements, and policies that require them."""
