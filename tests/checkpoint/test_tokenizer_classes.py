# SPDX-License-Identifier: Apache-2.0
"""Texts and chats have the ids that AutoTokenizer gives them, whatever the tokenizer's class makes of its file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.tokenizer_kinds import CHATS, TEMPLATES, TEXTS, kinds, write
from trtspec.checkpoint.tokenizer import Tokenizer
from trtspec.prompts.chat import ChatTemplate

KINDS = kinds()


@cache
def auto_tokenizer() -> Any:
    import transformers

    untyped: Any = transformers
    untyped.logging.set_verbosity_error()
    return untyped.AutoTokenizer


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_texts_have_the_ids_of_auto_tokenizer(kind: str, tmp_path: Path) -> None:
    root = write(tmp_path / kind, *KINDS[kind])
    theirs, ours = auto_tokenizer().from_pretrained(root), Tokenizer(root)
    for text in TEXTS:
        for special in (True, False):
            assert ours.encode(text, special) == theirs.encode(text, add_special_tokens=special), (text, special)
    ids = theirs.encode("Hello world </s> naïve", add_special_tokens=False)
    assert ours.decode_whole(ids) == theirs.decode(ids, skip_special_tokens=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_chats_have_the_ids_of_apply_chat_template(kind: str, tmp_path: Path) -> None:
    tokenizer, config, model = KINDS[kind]
    for name, source in TEMPLATES.items():
        root = write(tmp_path / name, tokenizer, {**config, "chat_template": source}, model)
        theirs, ours, template = auto_tokenizer().from_pretrained(root), Tokenizer(root), ChatTemplate(root, 1 << 20, 1)
        for chat in CHATS:
            wanted = theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
            text = template.render(chat)
            assert text == theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=False), name
            assert ours.encode(text) == wanted, name
        template.close()
