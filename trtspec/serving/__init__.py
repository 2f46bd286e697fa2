# SPDX-License-Identifier: Apache-2.0
"""Serving: Triton models and client, the OpenAI gateway, and the HTTP proxy in front of tritonserver."""
