# SPDX-License-Identifier: Apache-2.0
"""Kinds of location, one module each, called after the scheme of its addresses: oci://HOST/NAME:TAG, file:PATH:TAG."""
