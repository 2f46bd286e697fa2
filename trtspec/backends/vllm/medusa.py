# SPDX-License-Identifier: Apache-2.0
"""Whether a release of vLLM reads Medusa heads as they are stored; what it does not find it leaves out in silence."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.versions import VllmRelease, cite, having
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.medusa.heads import LISTED

MODEL, NAMES = "speculation.draft.model", "maps_medusa_names"
LOADER, CONFIG = "model_executor/models/medusa.py", "transformers_utils/configs/medusa.py"
HIDDEN_SIZE = 4096  # what vLLM takes where config.json of the heads does not say


def check_medusa(context: PlanContext, release: VllmRelease) -> Iterable[Diagnostic]:
    """Yield what the heads' config.json has to say, or a release cannot read."""
    if context.recipe.speculation.method != "medusa":
        return
    net, wanted = context.sources["draft"], context.sources["target"].config.get("hidden_size", HIDDEN_SIZE)
    if NAMES not in release.does and not LISTED.blocks(net):
        message = f"vLLM {release.version} does not know the names of the heads' tensors, and drafts without them"
        hint = f"trtspec convert-draft --to vllm renames them; {having(lambda each: NAMES in each.does)}"
        yield Diagnostic(MODEL, "net-class", message, hint, source=cite(release, LOADER))
    if (size := net.config.get("hidden_size", HIDDEN_SIZE)) != wanted:
        message = f"vLLM takes the heads for those of hidden states of {size}, the target's have {wanted}"
        hint = f"write hidden_size: {wanted} into the heads' config.json"
        yield Diagnostic(MODEL, "hidden-size", message, hint, source=cite(release, CONFIG))
    if any(name.endswith("linear.bias") for name in net.tensors) and not net.config.get("medusa_fc_bias"):
        message, hint = "vLLM leaves the heads' biases out", "write medusa_fc_bias: true into the heads' config.json"
        yield Diagnostic(MODEL, "net-bias", message, hint, "warning", source=cite(release, LOADER))
