# SPDX-License-Identifier: Apache-2.0
"""One file a dialect; found by scanning this folder."""
