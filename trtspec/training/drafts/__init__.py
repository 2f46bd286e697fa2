# SPDX-License-Identifier: Apache-2.0
"""What can be trained: one file a speculation method, whose checkpoints it reads and writes."""
