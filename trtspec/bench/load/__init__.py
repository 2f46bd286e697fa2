# SPDX-License-Identifier: Apache-2.0
"""Load tests: concurrent or timed requests to one or two servers."""
