# SPDX-License-Identifier: Apache-2.0
"""Load generation: concurrent or timed requests against one or two servers."""
