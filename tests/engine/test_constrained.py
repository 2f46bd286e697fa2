# SPDX-License-Identifier: Apache-2.0
"""Constrained text: it fits its grammar, equals the target's constrained text, and has its distribution."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from tests._support.tiny import convert, make_model, reference_model
from tests.engine.drafters.test_eagle import one_by_one
from tests.engine.every_method import METHODS, Models
from tests.engine.grammars import MERGED, SYMBOLS, has_references_of_its_own, random_schema, save_tokenizer
from tests.engine.lossless import DISTRIBUTION_SHAPE, engine_texts, random_prompts
from tests.kernels import reference
from tests.methods.eagle_heads import convert_with, random_head, save_head
from trtspec.core.errors import TrtspecError
from trtspec.engine.drafting import feature_drafters
from trtspec.engine.engine import Engine
from trtspec.engine.generation.grammar_compiler import GrammarCompiler
from trtspec.engine.generation.request import Constraint, EngineRequest, LogitEdits, SamplingOptions
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration
pytest.importorskip("llguidance", reason="needs llguidance")

END = (0,)
LEN = 90
SCHEMA = {
    "type": "object", "required": ["id", "tags"], "additionalProperties": False,
    "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 999}, "name": {"type": "string", "maxLength": 8},
                   "tags": {"type": "array", "items": {"enum": ["true", "null", "ab"]}, "maxItems": 3}},
}  # fmt: skip
CONSTRAINTS = {
    "schema": Constraint("json_schema", json.dumps(SCHEMA)),
    "json": Constraint("json"),
    "regex": Constraint("regex", "(true|null|[0-9]{2}, ){4,8}"),
    "lark": Constraint("ebnf_grammar", 'start: pair+ "."\npair: /[a-f]/ ("12" | "ab")'),
    "gbnf": Constraint("ebnf_grammar", 'root ::= ("ab" | [0-9])+ "."'),
}
LANGUAGES = {
    "regex": re.compile("(true|null|[0-9]{2}, ){4,8}"),
    "lark": re.compile(r"([a-f](12|ab))+\."),
    "gbnf": re.compile(r"(ab|[0-9])+\."),
}


class Pair:
    """Checkpoints for every method, and a tokenizer of their vocabulary."""

    def __init__(self, root: Path) -> None:
        self._models = Models(root)
        self._tokenizer = save_tokenizer(root / "tokenizer", [*SYMBOLS, *MERGED])

    def load(self, name: str, **settings: Any) -> Engine:
        part, method, draft_len, options = METHODS[name]
        sizes = {"max_batch_size": 8, "max_seq_len": 256, "device": "cpu"} | settings
        draft = self._models.draft if method in ("draft_target", "pard") else None
        chosen = EngineSettings(method, draft_len, options, **sizes)
        return Engine(self._models.target(part), draft, chosen, self._tokenizer)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def engine(pair: Pair) -> Iterator[Engine]:
    engine = pair.load("draft_target")
    yield engine
    engine.close()


def fits(name: str, text: str) -> bool:
    if name in LANGUAGES:
        return LANGUAGES[name].fullmatch(text) is not None
    value = json.loads(text)
    return name == "json" or not list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(value))


@pytest.mark.parametrize("method", METHODS)
def test_greedy_text_equals_the_targets_constrained_text(method: str, pair: Pair) -> None:
    """For every method, with constrained and free requests in one batch; free requests keep their text."""
    prompts = random_prompts(len(CONSTRAINTS) + 1)
    engine = pair.load(method)
    requests = [
        EngineRequest(prompt, LEN, end_ids=END, constraint=constraint)
        for prompt, constraint in zip(prompts, [*CONSTRAINTS.values(), None], strict=True)
    ]
    together = engine.generate(requests)
    target_only = [
        engine.generate([EngineRequest(each.prompt_ids, LEN, end_ids=END, constraint=each.constraint, draft_len=0)])[0]
        for each in requests
    ]
    assert [result.ids for result in together] == [result.ids for result in target_only]
    assert [result.finish_reason for result in together] == [result.finish_reason for result in target_only]
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    ended = [
        fits(name, tokenizer.decode(result.ids))
        for name, result in zip(CONSTRAINTS, together, strict=False)
        if result.finish_reason == "end_id"
    ]
    engine.close()
    assert len(ended) >= 2
    assert all(ended)


def generate(engine: Engine, constraint: Constraint, **options: Any) -> tuple[str, str]:
    """Return the text of one request and its finish reason."""
    request = EngineRequest((5, 9, 3), options.pop("length", LEN), constraint=constraint, **{"end_ids": END} | options)
    (result,) = engine.generate([request])
    assert engine.tokenizer is not None
    return engine.tokenizer.decode(result.ids), result.finish_reason


SEEDS_OF_A_TEST = 25
SCHEMAS = int(os.environ.get("TRTSPEC_FUZZ_EXAMPLES", "400"))


@pytest.mark.parametrize("first", range(0, SCHEMAS, SEEDS_OF_A_TEST))
def test_text_of_a_random_schema_is_valid_and_equals_the_targets(first: int, engine: Engine) -> None:
    """Valid by jsonschema, an independent validator; greedy, and sampled with another seed for each schema."""
    ended = 0
    for seed in range(first, first + SEEDS_OF_A_TEST):
        schema = random_schema(seed)
        if has_references_of_its_own(schema):
            continue
        constraint = Constraint("json_schema", json.dumps(schema))
        prompt = random_prompts(1, seed=seed)[0]
        greedy = [EngineRequest(prompt, LEN, end_ids=END, constraint=constraint, draft_len=size) for size in (None, 0)]
        sampled = EngineRequest(prompt, LEN, SamplingOptions(1.0, seed=seed), END, constraint=constraint)
        drafted, alone, random = engine.generate([*greedy, sampled])
        assert drafted.ids == alone.ids
        assert engine.tokenizer is not None
        for result in (drafted, random):
            text = engine.tokenizer.decode(result.ids)
            if result.finish_reason == "end_id":
                ended += 1
                jsonschema.Draft202012Validator(schema).validate(json.loads(text))
            else:
                assert result.finish_reason == "length"
    assert ended > SEEDS_OF_A_TEST


class TestEnds:
    def test_text_ends_where_the_grammar_ends_without_end_ids(self, engine: Engine) -> None:
        assert generate(engine, Constraint("regex", "(ab){3}"), end_ids=()) == ("ababab", "end_id")

    def test_max_tokens_in_the_middle_is_no_error(self, engine: Engine) -> None:
        text, reason = generate(engine, Constraint("regex", "[a-f]{20}"), length=7)
        assert reason == "length"
        assert re.fullmatch("[a-f]{7,14}", text)

    def test_end_id_comes_only_where_the_grammar_accepts(self, engine: Engine) -> None:
        certain = LogitEdits(bias={0: 1e4})
        assert generate(engine, Constraint("regex", "c{5}d*"), edits=certain) == ("ccccc", "end_id")

    def test_grammar_takes_precedence_over_forbidden_tokens(self, engine: Engine) -> None:
        words = tuple((token,) for token in range(1, 64))
        text, reason = generate(engine, Constraint("regex", "[ab]{5}"), edits=LogitEdits(bad_words=words))
        assert reason == "end_id"
        assert re.fullmatch("[ab]{5}", text)

    def test_stop_text_ends_constrained_text(self, engine: Engine) -> None:
        text, reason = generate(engine, Constraint("regex", "cccc.*"), stop=("ccc",))
        assert (text[:3], reason) == ("ccc", "stop")

    def test_external_draft_is_verified_under_the_grammar(self, engine: Engine) -> None:
        (alone,) = engine.generate([EngineRequest((5, 9, 3), 9, constraint=CONSTRAINTS["gbnf"], draft_len=0)])
        drafted = EngineRequest((5, 9, 3), 9, constraint=CONSTRAINTS["gbnf"], draft_ids=(*alone.ids[:4], 1, 1))
        (result,) = engine.generate([drafted])
        assert result.ids == alone.ids[:5]


class TestDrafts:
    def test_forced_tokens_are_drafted(self, engine: Engine) -> None:
        """A text with a single possibility takes one step for each draft_len + 1 tokens."""
        (result,) = engine.generate([EngineRequest((5,), 40, constraint=Constraint("regex", "c{20}"), end_ids=END)])
        assert result.stats.accepted == result.stats.drafted
        assert result.stats.steps <= 4

    def test_forbidden_tokens_are_cut(self, pair: Pair) -> None:
        """The text of the prompt continues with "d.cd.", of which the grammar allows the first token."""
        engine = pair.load("ngram")
        c, d, point = (SYMBOLS.index(each) + 1 for each in "cd.")
        request = EngineRequest((c, d, point) * 5, 8, constraint=Constraint("regex", "cd[e-h]"))
        (result,) = engine.generate([request])
        engine.close()
        assert (result.stats.drafted, result.stats.accepted) == (1, 1)

    def test_request_without_drafts_gets_no_forced_tokens(self, engine: Engine) -> None:
        request = EngineRequest((5,), 40, constraint=Constraint("regex", "c{20}"), draft_len=0)
        assert engine.generate([request])[0].stats.drafted == 0


def nested(depth: int) -> dict[str, Any]:
    return {"$ref": "#/$defs/d0", "$defs": {
        **{f"d{at}": {"type": "array", "items": {"$ref": f"#/$defs/d{at + 1}"}} for at in range(depth)},
        f"d{depth}": {},
    }}  # fmt: skip


REFUSED = {
    "unknown kind": (Constraint("xml", "a"), "expected one of json, json_schema, regex, ebnf_grammar"),
    "empty": (Constraint("regex"), "the regex guide is empty"),
    "no JSON": (Constraint("json_schema", "{"), "the json_schema guide is not supported"),
    "no regex": (Constraint("regex", "("), "the regex guide is not supported"),
    "no grammar": (Constraint("ebnf_grammar", "start: other"), "the ebnf_grammar guide is not supported"),
    "matches nothing": (Constraint("json_schema", '{"$ref": "#"}'), "the json_schema guide is not supported"),
    "too large": (Constraint("json_schema", '{"a": "%s"}' % ("a" * (128 << 10))), "expected at most 131,072"),
    "nested JSON": (Constraint("json_schema", '{"not":' * 9999 + "{}" + "}" * 9999), "not supported: recursion limit"),
    "stack": (Constraint("json_schema", json.dumps(nested(1500))), "the json_schema guide cannot be compiled"),
    "states": (
        Constraint("json_schema", json.dumps({"allOf": [{"pattern": f".*{chr(97 + at)}.*"} for at in range(20)]})),
        "the json_schema guide cannot be compiled",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("constraint", "message"), REFUSED.values(), ids=REFUSED)
def test_unusable_guide_is_refused_and_the_engine_continues(
    constraint: Constraint, message: str, engine: Engine
) -> None:
    with pytest.raises(TrtspecError, match=re.escape(message)):
        engine.generate([EngineRequest((5,), 5, constraint=constraint)])
    assert generate(engine, Constraint("regex", "ab")) == ("ab", "end_id")


def test_step_beyond_the_librarys_limits_ends_the_request_only(engine: Engine) -> None:
    """`(((a{1,100}){1,100})...` compiles, but a later state is too large."""
    large = Constraint("regex", "a" * 20 + "(" * 6 + "a" + "{1,100})" * 6 + "{1,100}")
    with pytest.raises(TrtspecError, match="the grammar failed: "):
        engine.generate([EngineRequest((5,), LEN, constraint=large)])
    assert generate(engine, Constraint("regex", "ab")) == ("ab", "end_id")


def test_engine_without_a_tokenizer_refuses_constraints(tmp_path: Path) -> None:
    target = convert(make_model(tmp_path / "hf", family="llama"), tmp_path / "target")
    engine = Engine(target, None, EngineSettings(device="cpu", max_seq_len=64))
    with pytest.raises(TrtspecError, match="structured output needs the engine to have a tokenizer"):
        engine.generate([EngineRequest((5,), 5, constraint=Constraint("json"))])
    engine.close()


def test_allowed_tokens_can_be_appended_and_removed_exactly(engine: Engine) -> None:
    assert engine.tokenizer is not None
    compiler = GrammarCompiler(engine.tokenizer, engine.vocab_size)
    chosen = np.random.default_rng(1)
    for constraint in CONSTRAINTS.values():
        matcher = compiler.matcher(constraint, END)
        for _ in range(30):
            before = mask_of(matcher, engine.vocab_size)
            allowed = [token for token in np.flatnonzero(before).tolist() if token != 0]
            for token in allowed:
                assert matcher.push(token)
                matcher.pop(1)
            assert (mask_of(matcher, engine.vocab_size) == before).all()
            assert bool(before[0]) == matcher._matcher.is_accepting()
            if not allowed:
                break
            assert matcher.advance([int(chosen.choice(allowed))]) == 1
        assert matcher.error is None
    compiler.close()


def mask_of(matcher: Any, vocab_size: int) -> np.ndarray:
    bits = np.zeros((vocab_size + 31) // 32, np.int32)
    matcher.fill(bits)
    return np.unpackbits(bits.view(np.uint8), count=vocab_size, bitorder="little")


# A language of few texts, some of whose tokens are forced, over the tokens 1 to 3.
TINY = re.compile("(abc|b?c){1,2}|a")
TINY_LEN = 4
WORDS = {"".join(word) for length in range(7) for word in itertools.product("abc", repeat=length)}
TINY_WORDS = {word for word in WORDS if TINY.fullmatch(word)}


def constrained_distribution(
    model: Any, prompt: tuple[int, ...], sampling: SamplingOptions
) -> dict[tuple[int, ...], float]:
    """Return the probability of every output of transformers' model that samples among the tokens of the language."""
    found: dict[tuple[int, ...], float] = {}

    def add(text: tuple[int, ...], weight: float) -> None:
        word = "".join("abc"[token - 1] for token in text)
        following = {each[len(word)] for each in TINY_WORDS if each.startswith(word) and each != word}
        allowed = [0] * (word in TINY_WORDS) + sorted("abc".index(each) + 1 for each in following)
        if len(text) == TINY_LEN or allowed == [0]:
            found[text] = found.get(text, 0.0) + weight
            return
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *text]])).logits[0, -1].double().numpy()
        row = reference.sampling_probs(logits[allowed], sampling.temperature, sampling.top_k, sampling.top_p)
        for token, probability in zip(allowed, row, strict=True):
            if token == 0 and probability > 0:
                found[text] = found.get(text, 0.0) + weight * float(probability)
            elif probability > 0:
                add((*text, token), weight * float(probability))

    add((), 1.0)
    return found


SAMPLED: dict[str, tuple[str, int, dict[str, Any], dict[str, Any]]] = {
    "chain": ("draft_target", 3, {}, {}),
    "block": ("draft_target", 3, {}, {"verify": "block"}),
    "lookup": ("ngram", 3, {"min_match": 1}, {}),
    "static tree": ("eagle", 0, {"choices": [[0], [1], [0, 0]]}, {}),
    "dynamic tree": ("eagle", 0, {"dynamic": True, "top_k": 2, "depth": 2, "nodes": 4}, {}),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["torch", "compiled"])
@pytest.mark.parametrize("how", SAMPLED)
def test_sampled_text_has_the_targets_constrained_distribution(
    how: str, compiled: bool, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, draft_len, options, settings = SAMPLED[how]
    shape = DISTRIBUTION_SHAPE | {"vocab_size": 4}
    source, hidden = make_model(tmp_path / "hf", **shape), shape["hidden_size"]
    target, draft = tmp_path / "target", None
    if method == "eagle":
        monkeypatch.setattr(feature_drafters, "draw_each", one_by_one)
        convert_with(source, save_head(tmp_path / "head", random_head(hidden), hidden=hidden, vocab=4), target, options)
    else:
        convert(source, target)
    if method == "draft_target":
        draft = convert(make_model(tmp_path / "hf-draft", seed=1, **shape), tmp_path / "draft")
    kernels = (request.getfixturevalue("kernel_library"),) if compiled else ()
    chosen = EngineSettings(method, draft_len, options, max_seq_len=32, device="cpu", kernels=kernels, **settings)
    engine = Engine(target, draft, chosen, save_tokenizer(tmp_path / "tokenizer", "abc"))
    prompt, constraint = (1, 2, 3), Constraint("regex", TINY.pattern)
    model = reference_model(source)
    for sampling in (SamplingOptions(1.0), SamplingOptions(0.8, top_p=0.9)):
        ours = engine_texts(engine, monkeypatch, EngineRequest(prompt, TINY_LEN, sampling, END, constraint=constraint))
        theirs = constrained_distribution(model, prompt, sampling)
        assert sum(theirs.values()) == pytest.approx(1.0)
        assert ours == pytest.approx(theirs, abs=2e-5)
    engine.close()
