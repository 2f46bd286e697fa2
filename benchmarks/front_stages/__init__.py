# SPDX-License-Identifier: Apache-2.0
"""The tokens per second of the front end, from a null engine to the clients, in comparison with others."""
