# SPDX-License-Identifier: Apache-2.0
"""The soak: what serving has to stand for long, on real servers with real models. One module a part, in `__main__`."""
