# SPDX-License-Identifier: Apache-2.0
"""Texts and chats have the ids of AutoTokenizer, for all tokenizer classes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.tokenizer_kinds import CHATS, TEMPLATES, TEXTS, kinds, write
from trtspec.checkpoints.tokenizer import RenderedText, Tokenizer
from trtspec.engine.prompts.chat import ChatTemplate
from trtspec.engine.prompts.prompt import Prompt

KINDS = kinds()


@cache
def auto_tokenizer() -> Any:
    import transformers

    untyped: Any = transformers
    untyped.logging.set_verbosity_error()
    return untyped.AutoTokenizer


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_text_ids_match_auto_tokenizer(kind: str, tmp_path: Path) -> None:
    root = write(tmp_path / kind, *KINDS[kind])
    theirs, ours = auto_tokenizer().from_pretrained(root), Tokenizer(root)
    for text in TEXTS:
        for special in (True, False):
            assert ours.encode(text, special) == theirs.encode(text, add_special_tokens=special), (text, special)
    ids = theirs.encode("Hello world </s> naïve", add_special_tokens=False)
    assert ours.decode_with_specials(ids) == theirs.decode(ids, skip_special_tokens=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_chat_ids_match_apply_chat_template(kind: str, tmp_path: Path) -> None:
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


def served(tmp_path: Path, *, begins: bool) -> Tokenizer:
    from tests.checkpoints.tokenizer_kinds import BYTES, beginning, byte_level

    tokenizer = beginning(byte_level(), "<s>") if begins else byte_level()
    return Tokenizer(write(tmp_path, tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", **BYTES}), vetted=True)


def test_rendered_chat_gets_no_special_tokens(tmp_path: Path) -> None:
    tokenizer = served(tmp_path, begins=True)
    assert tokenizer.encode(RenderedText("Hi")) == tokenizer.encode("Hi")[1:] == tokenizer.encode("Hi", False)
    assert tokenizer.encode(replace(Prompt("", "1", ""), text=RenderedText("Hi")).text)[0] != tokenizer.adds[0]


def test_plain_text_of_chat_omits_special_tokens_the_engine_adds_or_is_none(tmp_path: Path) -> None:
    tokenizer = served(tmp_path / "begins", begins=True)
    for text, plain in (("<s>[user] Hi", "[user] Hi"), ("[user] Hi", None), ("</s>Hi", None)):
        assert tokenizer.as_plain(RenderedText(text)) == plain
    other = served(tmp_path / "other", begins=False)
    for text in ("<s>[user] Hi", "[user] Hi"):
        assert other.as_plain(RenderedText(text)) == text
        assert not isinstance(other.as_plain(RenderedText(text)), RenderedText)


def test_requests_with_a_rendered_chat_set_add_special_tokens_to_false() -> None:
    from trtspec.bench.load.api import LoadSampling, find_api
    from trtspec.serving.triton.client import with_special_tokens_flag

    assert with_special_tokens_flag({"text_input": "a"}) == {"text_input": "a"}
    assert with_special_tokens_flag({"text_input": RenderedText("a")}) == {
        "text_input": "a",
        "add_special_tokens": False,
    }
    for name in ("triton", "completions"):
        bodies = [find_api(name).body("m", Prompt(text, "1", ""), LoadSampling(3)) for text in ("a", RenderedText("a"))]
        assert [body.get("add_special_tokens") for body in bodies] == [None, False]


def test_served_tokenizer_encodes_a_rendered_chat_without_adding_tokens(tmp_path: Path) -> None:
    from trtspec.serving.triton.python_models.token_io import TextReader

    tokenizer = served(tmp_path, begins=True)
    reader = TextReader(tokenizer, 64)
    assert reader.prompt(["<s>Hi"], False) == tokenizer.encode("Hi") == reader.prompt(["Hi"])


def test_gateway_makes_the_same_prompt_from_a_chat_and_its_rendered_text(tmp_path: Path) -> None:
    """A chat, its rendered text with the flag, and a text for engines that add special tokens."""
    from trtspec.serving.gateway.config import GatewayConfig
    from trtspec.serving.gateway.errors import ApiError
    from trtspec.serving.gateway.prompts import PromptReader

    chat = [{"role": "user", "content": "Hello"}]
    for name, source in (
        ("begins", "{{ bos_token }}{{ messages[0].content }}"),
        ("without", "{{ messages[0].content }}"),
    ):
        tokenizer = served(tmp_path / name, begins=True)
        (tmp_path / name / "chat_template.jinja").write_text(source)
        config = GatewayConfig("", 0, "m", "t", str(tmp_path / name), 64, 32)
        for text_level in (False, True):
            prompts = PromptReader(replace(config, text_level=text_level))
            [made] = asyncio.run(prompts.read({"messages": chat}, 1, chat=True))
            text = "<s>Hello" if name == "begins" else "Hello"
            body = {"prompt": text, "add_special_tokens": False}
            assert [made] == asyncio.run(prompts.read(body, 1, chat=False))
            if not text_level:
                assert list(made) == tokenizer.encode(text, False)
                continue
            assert isinstance(made, RenderedText)
            assert prompts.as_sent(made, takes_flag=True) is made
            if name == "begins":
                assert prompts.as_sent(made, takes_flag=False) == "Hello"
            else:
                with pytest.raises(
                    ApiError, match="adds special tokens that the model's chat template does not contain"
                ):
                    prompts.as_sent(made, takes_flag=False)
