# SPDX-License-Identifier: Apache-2.0
"""Medusa in vLLM, which silently ignores tensors of heads with other names."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.common.checks import DRAFT
from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.versions import VllmMethod, VllmRelease, cite, having
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.medusa import LISTED

NAMES = "maps_medusa_names"
LOADER, CONFIG = "model_executor/models/medusa.py", "transformers_utils/configs/medusa.py"
HIDDEN_SIZE = 4096  # vLLM's default for a missing key in the heads' config.json


def _check(context: PlanContext, release: VllmRelease) -> Iterator[Diagnostic]:
    """Yield missing keys in the heads' config.json, and formats that a release cannot read."""
    net, wanted = context.sources["draft"], context.sources["target"].config.get("hidden_size", HIDDEN_SIZE)
    if NAMES not in release.does and not LISTED.blocks(net):
        message = f"vLLM {release.version} does not recognize the names of the heads' tensors and ignores them"
        hint = f"trtspec convert-draft --to vllm renames them; {having(lambda each: NAMES in each.does)}"
        yield Diagnostic(DRAFT, "net-class", message, hint, source=cite(release, LOADER))
    if (size := net.config.get("hidden_size", HIDDEN_SIZE)) != wanted:
        message = f"vLLM expects hidden states of size {size} for the heads, but the target's size is {wanted}"
        hint = f"set hidden_size: {wanted} in the heads' config.json"
        yield Diagnostic(DRAFT, "hidden-size", message, hint, source=cite(release, CONFIG))
    if any(name.endswith("linear.bias") for name in net.tensors) and not net.config.get("medusa_fc_bias"):
        message, hint = "vLLM ignores the heads' biases", "set medusa_fc_bias: true in the heads' config.json"
        yield Diagnostic(DRAFT, "net-bias", message, hint, "warning", source=cite(release, LOADER))


METHOD = VllmMethod("medusa", fixed_length=True, check=_check)
