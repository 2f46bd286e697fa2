# SPDX-License-Identifier: Apache-2.0
"""Renders config.json of a draft in another dialect. A fact that the dialect cannot represent is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.checkpoints.source_model import SourceModel
from trtspec.methods.base import find_method
from trtspec.methods.draft_formats.dialect import DraftSchema
from trtspec.methods.draft_formats.draft import SourceDraft
from trtspec.methods.draft_formats.facts import SOFT, neutral
from trtspec.methods.draft_formats.heads import KIND as MEDUSA
from trtspec.methods.draft_formats.keys import CARRIED, LEFT_OUT, set_path
from trtspec.methods.eagle3 import default_aux_layers

VERIFIER = "speculators_config"


def render_config(
    draft: SourceDraft, name: str, form: DraftSchema, target: SourceModel | None, written: str, left_out: list[str]
) -> dict[str, Any]:
    """Return config.json in the dialect `name`.

    `written` is the target as written by the user. `left_out` are omitted tensors that the target has.

    Raise CheckpointError if the dialect cannot represent a fact, or requires one that is unknown.
    """
    others = {key: value for key, value in draft.carried.items() if key not in (name, "facts")}
    config = _base_config(draft, form, target)
    for key, value in {**form.carried, **draft.carried.get(name, {})}.items():
        if value is not None:
            set_path(config, tuple(key.split(".")), value)
    for path, value in form.fixed.items():
        set_path(config, path, value)
    for fact, value in _encoded_facts(draft, form, target).items():
        set_path(config, form.key_of[fact].path, value)
    if form.section:
        config[form.section] = draft.layer
    if form.names_target and form.names_target not in config:
        if not written:
            raise draft.refuse(f"{form.names_target} requires the name of the target", "give --target")
        config[form.names_target] = written
    if form.says_verifier and VERIFIER not in config:
        config[VERIFIER] = _verifier(draft, target, written)
    soft = draft.facts[SOFT] if SOFT not in form.key_of and not target else None
    if facts := {key: value for key, value in ((SOFT, soft), (LEFT_OUT, left_out)) if value}:
        others["facts"] = facts
    return {**config, CARRIED: others} if others else config


def _base_config(draft: SourceDraft, form: DraftSchema, target: SourceModel | None) -> dict[str, Any]:
    """Return the initial config: the layers' keys, or the target's config if the draft is stored in its files."""
    if form.is_whole_model and target:
        return dict(target.source.config)
    if form.names:
        return {}
    return {"architectures": [form.architecture], **({} if form.section else draft.layer)}


def _encoded_facts(draft: SourceDraft, form: DraftSchema, target: SourceModel | None) -> dict[str, Any]:
    """Return the facts to write, in the dialect's encoding."""
    facts = dict(draft.facts)
    aux_key = form.key_of.get("aux_layers")
    if target and aux_key and aux_key.is_needed and not facts.get("aux_layers"):
        facts["aux_layers"] = default_aux_layers(target.config.num_layers)
    found = {}
    for fact, value in facts.items():
        plain = neutral(fact, draft.layer)
        key = form.key_of.get(fact)
        if fact in form.told_by_tensors:
            continue
        if key is None:
            _check_meant(draft, form, fact, value, form.means.get(fact, plain))
        elif value is None and key.is_needed:
            raise draft.refuse(f"{'.'.join(key.path)} is required, but its config.json does not have it", _GIVE)
        elif value is not None and (key.always or value not in (plain, False)):
            found[fact] = key.encode(value)
    return found


_GIVE = "give --target if it is a property of the target"


def _check_meant(draft: SourceDraft, form: DraftSchema, fact: str, value: Any, meant: Any) -> None:
    """Raise CheckpointError if a dialect without a key for a fact implies another value."""
    if fact == SOFT or value == meant or (not value and not meant):
        return
    message = f"{form.architecture} has no key for {fact} = {_format(value)}, and implies {_format(meant or False)}"
    raise draft.refuse(message, "choose a dialect that supports it" + ", such as speculators" * (draft.kind != MEDUSA))


def _format(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _verifier(draft: SourceDraft, target: SourceModel | None, written: str) -> Mapping[str, Any]:
    """Return speculators_config, from which vLLM and speculators read the target's name."""
    if target is None:
        raise draft.refuse("speculators_config requires the name of the target", "give --target")
    tokens = draft.facts.get("block_size", 0) - (not draft.facts.get("sample_from_anchor", False))
    method = find_method(draft.kind)
    return {
        "algorithm": draft.kind.replace("p_eagle", "peagle"),
        "proposal_methods": [
            {
                "proposal_type": "greedy",
                "speculative_tokens": tokens if tokens > 0 else method.default_draft_len,
                "verifier_accept_k": 1,
                "accept_tolerance": 0.0,
            }
        ],
        "default_proposal_method": "greedy",
        "verifier": {
            "name_or_path": written,
            "architectures": target.source.config.get("architectures") or [target.config.architecture],
        },
    }
