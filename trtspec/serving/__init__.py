# SPDX-License-Identifier: Apache-2.0
"""The served side: Triton models and client, the OpenAI gateway, and the HTTP front of tritonserver."""
