# SPDX-License-Identifier: Apache-2.0
"""Check recipe keys that only some backends support: draft verification, schedules, device, compute dtype."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.base import Backend, backends
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.base import Method, Options
from trtspec.recipe.schema import Recipe, Speculation

SCHEDULE = "speculation.schedule"


def check_features(
    speculation: Speculation, method: Method, options: Options, backend: Backend
) -> Iterator[Diagnostic]:
    """Yield the features that the backend does not support or that do not apply to the method."""
    for knob in speculation.knobs:
        if method.shape_for(options, None).max_tokens == 0:
            message = f"{speculation.method} drafts nothing, so {knob} is ignored"
            yield Diagnostic(f"speculation.{knob}", "unused", message, f"remove {knob}, or set another method")
        elif knob not in backend.knobs:
            message = f"{knob} is not supported by this backend ({backend.summary})"
            yield Diagnostic(f"speculation.{knob}", "not-supported", message, _remedy(knob, speculation.method))
        elif knob == "schedule":
            yield from _check_schedule(speculation, method)
        elif knob in ("verify", "confidence"):
            yield from _check_chain(knob, speculation, method, options)


def check_device_and_dtype(recipe: Recipe, backend: Backend) -> Iterator[Diagnostic]:
    """Yield the device, compute dtype and request defaults that the backend does not support."""
    drafts = {"speculation.draft.dtype": recipe.speculation.draft.dtype} if recipe.speculation.draft else {}
    for path, value, attribute in (
        ("engine.device", recipe.engine.device, "devices"),
        ("serving.defaults", recipe.serving.defaults, "defaults"),
        *((path, dtype, "dtypes") for path, dtype in {"target.dtype": recipe.target.dtype, **drafts}.items()),
    ):
        if value and value not in getattr(backend, attribute):
            names = [name for name, each in backends().items() if value in getattr(each, attribute)]
            message = f"{value} is not supported by this backend ({backend.summary})"
            yield Diagnostic(path, "not-supported", message, f"remove it, or set engine.backend: {' or '.join(names)}")


def check_warmup(recipe: Recipe, backend: Backend) -> Iterator[Diagnostic]:
    """Yield an error if a warm-up is requested from a backend that does not support it."""
    if recipe.serving.warmup and not backend.warms:
        names = [name for name, each in backends().items() if each.warms]
        message = f"warmup is not supported by this backend ({backend.summary}), whose engine has its own warm-up"
        hint = (
            f"remove it, or set engine.backend: {' or '.join(names)}; deploy --wait-for-warmup waits for a first text"
        )
        yield Diagnostic("serving.warmup", "not-supported", message, hint)


def _remedy(knob: str, method: str) -> str:
    """Return the hint: remove the key, or use a backend that supports both the key and the method."""
    names = [name for name, each in backends().items() if knob in each.knobs and method in each.methods()]
    return f"remove {knob}, or set engine.backend: {' or '.join(names)}" if names else f"remove {knob}"


def _check_schedule(speculation: Speculation, method: Method) -> Iterator[Diagnostic]:
    """Yield schedule errors: engines reserve draft_len tokens for a request, so the first entry must equal it."""
    if not method.draft_lens:
        message = f"{speculation.method} does not use draft_len, so a schedule cannot shorten it"
        yield Diagnostic(SCHEDULE, "not-supported", message, "remove schedule")
        return
    first = speculation.schedule[0].draft_len
    draft_len = method.length_for(speculation.draft_len)
    if first != draft_len:
        message = f"it begins with {first} draft tokens, but speculation.draft_len is {draft_len}"
        yield Diagnostic(SCHEDULE, "out-of-range", message, f"set speculation.draft_len: {first}" if first else None)


def _check_chain(knob: str, speculation: Speculation, method: Method, options: Options) -> Iterator[Diagnostic]:
    shape = method.shape_for(options, speculation.draft_len)
    what, hint = {
        "verify": ("block verification", "set verify: standard"),
        "confidence": ("a length by confidence", "remove confidence"),
    }[knob]
    if shape.max_tokens > shape.max_depth:
        message = f"{what} supports chains only, and this method drafts a tree"
        yield Diagnostic(f"speculation.{knob}", "not-supported", message, hint)
    elif knob == "confidence" and not method.has_confidence:
        message = f"{speculation.method} does not provide probabilities to estimate the confidence of a draft"
        yield Diagnostic(f"speculation.{knob}", "not-supported", message, hint)
