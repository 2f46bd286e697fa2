# SPDX-License-Identifier: Apache-2.0
"""Items about the artifact: build, verification, gates, limits and serving settings."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.base import find_backend
from trtspec.bench.gates import active_gates
from trtspec.bench.speedup import UNDECIDED
from trtspec.recipe.unsafe_overrides import find_unsafe_overrides
from trtspec.report.readiness.facts import ReadinessInputs
from trtspec.report.readiness.row import MEASURED, ReadinessItem, done, missing, not_needed

SHORT = 12
ELSEWHERE = "measured elsewhere, not verified here"
NOT_SPECULATING = "the recipe does not speculate"


def built(facts: ReadinessInputs) -> ReadinessItem:
    """Report the manifest and the date of the artifact; always done."""
    named = f"manifest {facts.manifest_sha256[:SHORT]}, {len(facts.manifest.files)} files"
    return done("built", f"{named}, {facts.published:{MEASURED}}")


def verified(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the artifact was verified on this machine and that all checks passed."""
    command, found = f"trtspec verify {facts.root}", facts.report
    if found is None:
        return missing("verified", ELSEWHERE if facts.has_copy else "not verified on this machine", command)
    failed, when = [check.name for check in found.checks if not check.ok], f"({facts.verified:{MEASURED}})"
    if failed:
        return missing("verified", f"failed: {', '.join(failed)} {when}", command)
    return done("verified", f"{len(found.checks)} checks passed {when}")


def gates(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the recipe's gates passed on the serving engine."""
    in_process = find_backend(facts.manifest.backend.name).in_process
    command = f"trtspec verify {facts.root}" if in_process else f"trtspec bench {facts.recipe.name} --gates"
    wanted = active_gates(facts.recipe)
    if not wanted or not facts.drafts:
        return not_needed("gates", NOT_SPECULATING if not facts.drafts else "the recipe sets no gates")
    judged = {check.name: check for check in (facts.report.checks if facts.report else ())}
    if open_ := [name for name in wanted if name not in judged]:
        return missing("gates", f"not evaluated: {', '.join(open_)}", command)
    if failed := [judged[name].detail for name in wanted if not judged[name].ok]:
        return missing("gates", "; ".join(failed), command)
    if undecided := [judged[name].detail for name in wanted if judged[name].state == UNDECIDED]:
        return missing("gates", "; ".join(undecided), command)
    return done("gates", "; ".join(judged[name].detail for name in wanted))


def limits(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the recipe sets min_acceptance and min_speedup."""
    if not facts.drafts:
        return not_needed("limits", NOT_SPECULATING)
    wanted = {"min_acceptance": facts.recipe.gates.min_acceptance, "min_speedup": facts.recipe.gates.min_speedup}
    if unset := [name for name, limit in wanted.items() if not limit]:
        settings = " ".join(f"--set gates.{name}=N" for name in unset)
        return missing("limits", f"not set: {', '.join(unset)}", f"trtspec build RECIPE {settings}")
    return done("limits", ", ".join(f"{name} {limit:g}" for name, limit in wanted.items()))


def parity(facts: ReadinessInputs) -> ReadinessItem:
    """Check that a quantized target was compared with its source."""
    stored = facts.recipe.target.quantization
    if stored.weights == "none" and stored.kv_cache == "none":
        return not_needed("parity", "the recipe does not quantize")
    check = next((each for each in (facts.report.checks if facts.report else ()) if each.name == "parity"), None)
    if check is None or not check.ok:
        return missing("parity", check.detail if check else "not compared", f"trtspec verify {facts.root}")
    return done("parity", check.detail)


def defaults(facts: ReadinessInputs) -> ReadinessItem:
    """Check that no recipe key loosens a default."""
    loosened = list(_loosened(facts))
    if loosened:
        return missing("defaults", ", ".join(loosened), "trtspec build RECIPE, without these keys")
    return done("defaults", "no gate, limit or serving setting is looser than its default")


def _loosened(facts: ReadinessInputs) -> Iterator[str]:
    if facts.recipe.speculation.acceptance != "exact":
        yield f"speculation.options.lossy ({facts.recipe.speculation.acceptance} acceptance)"
    yield from map(str, find_unsafe_overrides(facts.recipe))


def warmup(facts: ReadinessInputs) -> ReadinessItem:
    """Check that the server warms up before its first request."""
    if facts.recipe.serving.warmup:
        return done("warm-up", "serving.warmup: Triton generates texts before its models are ready")
    if not find_backend(facts.manifest.backend.name).warms:
        return not_needed("warm-up", "the engine warms up itself; deploy --wait-for-warmup waits for a first text")
    return missing("warm-up", "serving.warmup is off", "trtspec build RECIPE --set serving.warmup=true")


def rollout(facts: ReadinessInputs) -> ReadinessItem:
    """Check that a rollout starts with a share of the requests, under limits."""
    serving, wanted = facts.recipe.serving, facts.recipe.serving.rollout
    if not serving.openai:
        why = "serving.openai is off: traffic cannot be split, and only synthetic probes decide"
        return missing("rollout", why, "trtspec build RECIPE --set serving.openai=true")
    if wanted.canary[0] == 100:
        command = "trtspec build RECIPE --set 'serving.rollout.canary=[5,25,100]'"
        return missing("rollout", "the first canary step is 100 %", command)
    shares = ", ".join(f"{share} %" for share in wanted.canary)
    rules = f"at most {wanted.max_failed} failures and {wanted.max_latency_ratio:g} times the latency"
    return done("rollout", f"{shares}, {wanted.hold_s:g} s each, {rules}")


ROWS = (built, verified, gates, limits, parity, defaults, warmup, rollout)
