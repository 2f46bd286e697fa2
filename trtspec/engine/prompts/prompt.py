# SPDX-License-Identifier: Apache-2.0
"""A prompt, the kinds that results are grouped by, and one record of a file before a format has read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from trtspec.core.errors import TrtspecError

Message: TypeAlias = Mapping[str, Any]  # {"role": ..., "content": ...}, as templates take them

CHAT, MULTI_TURN, SUMMARIZATION, TRANSLATION = "chat", "multi-turn", "summarization", "translation"
QUESTION_ANSWERING, RAG, MATH = "question-answering", "rag", "math"
CODE, CODE_EDITING, STRUCTURED, WRITING = "code", "code-editing", "structured-output", "creative-writing"
KINDS = (CHAT, MULTI_TURN, SUMMARIZATION, TRANSLATION, QUESTION_ANSWERING, RAG, MATH, CODE, CODE_EDITING, STRUCTURED,
         WRITING)  # fmt: skip
# Categories of published sets that mean the same; others keep their names.
SAME = {"coding": CODE, "math_reasoning": MATH, "qa": QUESTION_ANSWERING, "writing": WRITING}
# What the formats of `formats/` read of a record; other columns of a parquet file are not unpacked.
KEYS = ("prompt", "messages", "kind", "document", "response", "id", "category", "body", "custom_id", "task_id",
        "entry_point", "question", "answer", "question_id", "turns", "src_id", "sub_category", "multiturn",
        "conversations", "system", "tools")  # fmt: skip


@dataclass(frozen=True)
class Prompt:
    """What a model is asked; `kind` groups prompts in reports, `name` is its id or its line's number.

    `text` is what is sent. Of `messages` it is the plain form until a tokenizer's chat template has made another.
    `further_turns` counts what a user would say after the answer, and what is left out. `answer` is what the file says
    that a model answered, None where it says nothing, `document` its name of what the prompt was taken from.
    """

    text: str
    name: str
    kind: str
    messages: tuple[Message, ...] = ()
    further_turns: int = 0
    answer: str | None = None
    document: str = ""


@dataclass(frozen=True)
class Record:
    """One value of a file: a JSON value, a row, or a line of text; `where` names its file and line."""

    where: str
    number: int
    value: Any

    def has(self, *keys: str) -> bool:
        """Tell whether it is an object with all these keys."""
        return isinstance(self.value, dict) and self.value.keys() >= {*keys}

    def get(self, key: str) -> Any:
        """Return what an object has under a key; None where it has nothing, or is none."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def text(self, key: str) -> str:
        """Return a text that is not empty; raises TrtspecError where there is none."""
        found = self.get(key)
        if not isinstance(found, str) or not found:
            raise self.refuse(f'expected {{"{key}": "some text"}}')
        return found

    def texts(self, key: str) -> Sequence[str]:
        """Return a list of texts, the first of them not empty; raises TrtspecError where there is none."""
        found = self.get(key)
        if not isinstance(found, list) or not found or not found[0] or not all(isinstance(each, str) for each in found):
            raise self.refuse(f'expected {{"{key}": ["some text", ...]}}')
        return found

    def name(self, key: str) -> str:
        """Return its id, or its number where it has none."""
        found = self.get(key)
        return str(self.number if found is None else found)

    def refuse(self, message: str, hint: str | None = None) -> TrtspecError:
        """Return the error that this record is."""
        return TrtspecError(message, where=self.where, hint=hint)


def kind_of(category: object) -> str:
    """Return our name of a published set's category, or the category itself; "" where there is none."""
    name = "" if category is None else str(category)
    return SAME.get(name, name)
