# SPDX-License-Identifier: Apache-2.0
"""Request validation, stop conditions, text streams and counts, shared by all served models."""
