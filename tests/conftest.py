# SPDX-License-Identifier: Apache-2.0
"""Set what must be set before torch is imported: on models this small, threads cost more than they bring."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
