# SPDX-License-Identifier: Apache-2.0
"""Where torch computes."""

from __future__ import annotations

import torch

from trtspec.errors import TrtspecError


def choose_device(wanted: str) -> torch.device:
    """Return the device for "auto" (CUDA where there is one), "cuda" or "cpu"; raises TrtspecError for none."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise TrtspecError("device cuda was asked for and this machine has none", hint="use device auto or cpu")
    return torch.device(wanted)
