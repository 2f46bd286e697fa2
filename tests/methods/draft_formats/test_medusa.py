# SPDX-License-Identifier: Apache-2.0
"""Medusa heads between dialects: shared LM heads, missing biases, whole models, and the message of every mistake."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.checkpoints.quant.compressed import compress, compressed_tensors
from tests.methods.draft_formats import medusa_nets as nets
from tests.methods.draft_formats.medusa_nets import HEADS, blocks_alone, fasterdecoding, sharing, vllm
from tests.methods.draft_formats.nets import Config, changed, config_of, contents, make_target
from tests.methods.draft_formats.test_faults import add, pop, said, set_at, set_size
from tests.methods.heads import HIDDEN, random_heads
from trtspec.checkpoints.source_model import SourceModel, load_model
from trtspec.core.errors import TrtspecError
from trtspec.methods.draft_formats.convert import convert_draft

Save = Callable[[Path], Path]
Change = Callable[[Config, dict[str, Tensor]], None]
Fault = tuple[str, Save, Change, str]  # description, heads, change, part of the message


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("target") / "hf")


@pytest.fixture(scope="module")
def model(target: Path) -> SourceModel:
    return load_model(target, "auto")


def refused(source: Path, to: str, out: Path, words: str, where: Path | str = "") -> str:
    """Assert that a conversion fails without writing files, and return the hint."""
    with pytest.raises(TrtspecError, match=words) as caught:
        convert_draft(source, to, out, str(where))
    assert not out.exists()
    return caught.value.hint or ""


class TestWhatHeadsShare:
    """FasterDecoding's heads since "2" have only blocks; vLLM stores the target's LM head once among their tensors."""

    def test_heads_without_lm_head_round_trip_through_vllm(self, target: Path, tmp_path: Path) -> None:
        source = blocks_alone(tmp_path / "source")
        refused(source, "vllm", tmp_path / "out", "which this dialect requires from the target")
        convert_draft(source, "vllm", tmp_path / "there", str(target))
        assert config_of(tmp_path / "there")["original_lm_head"] is True
        there, theirs = (load_file(root / "model.safetensors") for root in (tmp_path / "there", target))
        assert torch.equal(there["lm_head.weight"], theirs["lm_head.weight"])
        assert len(there) == 9
        refused(tmp_path / "there", "fasterdecoding", tmp_path / "out", "which this dialect takes from the target")
        convert_draft(tmp_path / "there", "fasterdecoding", tmp_path / "back", str(target))
        assert contents(tmp_path / "back") == contents(source)
        assert config_of(tmp_path / "back")["version"] == "2"

    def test_lm_head_that_differs_from_the_target_is_rejected(self, tmp_path: Path) -> None:
        other = make_target(tmp_path / "other", seed=1)
        source = sharing()(tmp_path / "source")
        refused(source, "fasterdecoding", tmp_path / "out", "its lm_head.weight differs from the target's", other)

    def test_shared_lm_head_may_be_stored_as_the_first_lm_head(self, target: Path, tmp_path: Path) -> None:
        convert_draft(sharing("lm_heads.0.weight")(tmp_path / "source"), "vllm", tmp_path / "out", str(target))
        convert_draft(sharing()(tmp_path / "usual"), "vllm", tmp_path / "as", str(target))
        assert contents(tmp_path / "out") == contents(tmp_path / "as")

    def test_conversion_of_shared_lm_head_to_modelopt_is_rejected(self, target: Path, tmp_path: Path) -> None:
        source = sharing()(tmp_path / "source")
        refused(source, "modelopt", tmp_path / "out", "no key for shares_lm_head = true, and implies false", target)

    def test_missing_vocabulary_size_requires_the_target(self, target: Path, tmp_path: Path) -> None:
        source = changed_file(blocks_alone(tmp_path / "sound"), tmp_path / "source", partial(unset, "vocab_size"))
        refused(source, "fasterdecoding", tmp_path / "out", "vocab_size and the heads' vocabulary matrices are missing")
        convert_draft(source, "fasterdecoding", tmp_path / "out", str(target))
        assert config_of(tmp_path / "out")["vocab_size"] == 64


def test_heads_without_biases_are_supported_only_by_vllm(target: Path, tmp_path: Path) -> None:
    source = vllm(bias=False)(tmp_path / "source")
    for to in ("fasterdecoding", "modelopt"):
        refused(source, to, tmp_path / "out", r"no key for has_bias = false, and implies true", target)
    convert_draft(source, "vllm", tmp_path / "out")
    assert config_of(tmp_path / "out")["medusa_fc_bias"] is False


def test_heads_are_extracted_from_a_whole_model_equal_to_the_target(target: Path, tmp_path: Path) -> None:
    source = nets.modelopt(tmp_path / "source")
    refused(source, "vllm", tmp_path / "out", "is stored in a whole model")
    refused(source, "vllm", tmp_path / "out", "is not the target's", make_target(tmp_path / "other", seed=1))
    convert_draft(source, "vllm", tmp_path / "out", str(target))
    assert len(contents(tmp_path / "out")) == 4 * (2 * 2 + 1)
    refused(tmp_path / "out", "modelopt", tmp_path / "back", "stores heads in their target's files")
    convert_draft(nets.medusa_1_0(tmp_path / "1.0"), "vllm", tmp_path / "of-1.0", str(target))
    convert_draft(fasterdecoding()(tmp_path / "alone"), "vllm", tmp_path / "of-alone")
    assert contents(tmp_path / "of-1.0") == contents(tmp_path / "of-alone")


def test_quantized_target_is_rejected_for_modelopt_output(target: Path, tmp_path: Path) -> None:
    """Otherwise the result would only be rejected when it is read back, after writing gigabytes."""
    quantized = compress(make_target(tmp_path / "quantized"), compressed_tensors())
    source = fasterdecoding()(tmp_path / "source")
    hint = refused(source, "modelopt", tmp_path / "out", f"but {quantized} is quantized", quantized)
    assert hint == "give the target before quantization"
    assert not list(tmp_path.glob(".out*"))


def test_fasterdecoding_config_records_the_target_name(target: Path, tmp_path: Path) -> None:
    """FasterDecoding assumes a Vicuna target otherwise; TGI ignores heads whose config.json has `architectures`."""
    source = vllm()(tmp_path / "source")
    refused(source, "fasterdecoding", tmp_path / "out", "requires the name of the target")
    convert_draft(source, "fasterdecoding", tmp_path / "out", str(target))
    config = config_of(tmp_path / "out")
    assert config["base_model_name_or_path"] == str(target)
    assert "architectures" not in config
    assert [path.name for path in (tmp_path / "out").glob("*.safetensors")] == ["medusa_lm_head.safetensors"]


def changed_file(source: Path, root: Path, change: Change) -> Path:
    """Copy heads with changed config.json and tensors; the tensor file can have any name."""
    (path,) = source.glob("*.safetensors")
    path.rename(source / "model.safetensors")
    return changed(source, root, change)


def unset(key: str, config: Config, tensors: dict[str, Tensor]) -> None:
    del config[key]


def lose(pattern: str, config: Config, tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if re.search(pattern, name)]:
        del tensors[name]


def put(pattern: str, value: Callable[[Tensor], Tensor], config: Config, tensors: dict[str, Tensor]) -> None:
    """Replace tensors."""
    for name in [name for name in tensors if re.search(pattern, name)]:
        tensors[name] = value(tensors[name])


def also(name: str, shape: tuple[int, ...], config: Config, tensors: dict[str, Tensor]) -> None:
    tensors[name] = torch.zeros(shape, dtype=torch.bfloat16)


def truncate(mapped: bool, config: Config, tensors: dict[str, Tensor]) -> None:
    config["truncated_vocab_size"] = 40
    put(r"lm_heads", lambda each: each[:40], config, tensors)
    if mapped:
        tensors["token_map"] = torch.arange(40)


def idle(head: int, config: Config, tensors: dict[str, Tensor]) -> None:
    """Insert the target's LM head as the first head, with zero blocks."""
    put(rf"^(blocks\.)?{head}\.", torch.zeros_like, config, tensors)


# By dialect: the keys of the numbers of heads and layers; a head's tensors, its matrix, the first bias.
WHERE: dict[str, tuple[tuple[str, ...], tuple[str, ...], str, str, str]] = {
    "fasterdecoding": (("medusa_num_heads",), ("medusa_num_layers",), r"^{}\.", r"^{}\.1\.weight", "0.0.linear.bias"),
    "modelopt": (
        ("medusa", "num_medusa_heads"),
        ("medusa", "num_medusa_layers"),
        r"^medusa_heads\.{}\.",
        r"^medusa_heads\.{}\.2\.weight",
        "0.0.linear.bias",
    ),
    "vllm": (
        ("num_heads",),
        ("num_hidden_layers",),
        r"^(block|lm_head)s\.{}\.",
        r"^lm_heads\.{}\.weight",
        "0.layers.0.bias",
    ),
}


def common(dialect: str) -> Iterator[tuple[str, Change, str]]:
    """Yield faults that are possible in each dialect."""
    count, layers, head, matrix, bias = WHERE[dialect]
    yield "a head's number is left out", partial(lose, head.format(1)), r"1\..*: missing"
    yield "fewer heads than said", partial(lose, head.format(3)), r"has 4 heads, but there are tensors for 3"
    yield "more heads than said", partial(set_at, count, 2), r"has 2 heads, but there are tensors for 4"
    yield "other layers than said", partial(set_at, layers, 3), r"has 3 layers per head, but the tensors have"
    yield "a bias is missing", partial(pop, bias), r"bias: missing"
    yield (
        "the first matrix is missing",
        partial(lose, matrix.format(0)),
        r", the first head's vocabulary matrix, is missing",
    )
    yield "another matrix is missing", partial(lose, matrix.format(2)), r"weight: missing"
    transposed = partial(put, matrix.format(r"\d"), lambda each: each.T.contiguous())
    yield "transposed matrices", transposed, r"it is transposed"
    small = partial(put, bias.replace("bias", "weight"), lambda each: each[:8, :8].contiguous())
    yield "a block of another size", small, r"\[8, 8\]"
    yield "another hidden size", partial(set_size, "hidden_size", 40), r"\[40, 40\]"
    yield "another vocabulary", partial(set_size, "vocab_size", 96), r"\[96, 32\]|drafts 64 of 96"
    yield "an unknown tensor", add, r"surplus\.weight"


def faults() -> Iterator[Fault]:
    """Yield all faults."""
    for (_, dialect), save in HEADS.items():
        for what, change, words in common(dialect):
            yield f"{dialect}: {what}", save, change, words
    one, fast = HEADS["medusa", "vllm"], HEADS["medusa", "fasterdecoding"]
    gap = partial(lose, r"\.1\.layers\.0\.")
    yield "a layer's number is left out", one, gap, r"blocks\.1\.layers\.0\.weight: missing"
    yield (
        "biases that vLLM leaves out",
        one,
        partial(unset, "medusa_fc_bias"),
        r"ignores the biases because medusa_fc_bias is false",
    )
    yield (
        "biases that vLLM never fills",
        vllm(bias=False),
        partial(set_at, ("medusa_fc_bias",), True),
        r"does not initialize the biases",
    )
    yield (
        "layers that vLLM leaves out",
        one,
        partial(unset, "num_hidden_layers"),
        r"has 1 layers per head, but the tensors have 2",
    )
    yield (
        "heads that vLLM takes for five",
        one,
        partial(unset, "num_heads"),
        r"has 5 heads, but there are tensors for 4",
    )
    yield (
        "a number that vLLM takes for theirs",
        one,
        partial(set_at, ("num_attention_heads",), 4),
        r"unknown to all .* of medusa: num_attention_heads",
    )
    yield "a vocabulary of its own", one, partial(truncate, True), r"drafts 40 of 64 tokens with a token_map"
    yield "a vocabulary without a map", one, partial(truncate, False), r"drafts 40 of 64 tokens without a token_map"
    yield "a map that is not read", one, partial(also, "token_map", (40,)), r"token_map: no rule uses it"
    yield (
        "one LM head of which nothing is said",
        sharing(),
        partial(unset, "original_lm_head"),
        r"lm_heads\.0\.weight, the first head's vocabulary matrix, is missing",
    )
    yield (
        "LM heads that are left out",
        one,
        partial(set_at, ("original_lm_head",), True),
        r"lm_heads\.1\.weight: no rule uses it",
    )
    yield (
        "biases that are said to be none",
        fast,
        partial(set_at, ("medusa_fc_bias",), False),
        r"medusa_fc_bias is false",
    )
    yield "heads under two names", fast, partial(also, "medusa_head.0.0.linear.weight", (32, 32)), r"under two prefixes"
    yield "a bias that no reader has", fast, partial(also, "0.1.bias", (64,)), r"0\.1\.bias: no rule uses it"
    yield "the target's own LM head first", sharing(), partial(idle, 0), r"head 0 equals the target's LM head"
    yield (
        "heads that are not trained",
        blocks_alone,
        partial(put, ".", torch.zeros_like),
        r"head 0, 1, 2, 3 equals the target's LM head",
    )


FAULTS = list(faults())


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=[fault[0] for fault in FAULTS])
def test_checkpoint_fault_is_reported(fault: Fault, model: SourceModel, tmp_path: Path) -> None:
    _, save, change, words = fault
    sound = save(tmp_path / "sound")
    assert said(sound, model) == ""
    assert re.search(words, said(changed_file(sound, tmp_path / "faulty", change), model), re.DOTALL)


def test_idle_head_is_reported_only_if_its_matrix_equals_the_target_lm_head(
    target: Path, model: SourceModel, tmp_path: Path
) -> None:
    """Its matrix is compared with the target's LM head, not only its blocks with zeros."""
    lm_head = load_file(target / "model.safetensors")["lm_head.weight"]

    def first(config: Config, tensors: dict[str, Tensor], matrix: Tensor) -> None:
        idle(0, config, tensors)
        tensors["0.1.weight"] = matrix

    for matrix, expected in ((lm_head, "head 0 equals"), (torch.zeros_like(lm_head), "")):
        root = tmp_path / (expected or "other")
        source = changed_file(fasterdecoding()(root / "sound"), root / "changed", partial(first, matrix=matrix))
        assert expected in said(source, model)
        assert bool(expected) == bool(said(source, model))


def test_pickle_files_are_not_opened(target: Path, tmp_path: Path) -> None:
    source = fasterdecoding()(tmp_path / "source")
    tensors = load_file(source / "medusa_lm_head.safetensors")
    (source / "medusa_lm_head.safetensors").unlink()
    torch.save(tensors, source / "medusa_lm_head.pt")
    assert "is a pickle, and pickles are not opened" in refused(
        source, "vllm", tmp_path / "out", r"no \*\.safetensors file"
    )


def test_single_head_is_converted_despite_the_deeper_default_tree(target: Path, tmp_path: Path) -> None:
    said = {**nets.FASTERDECODING, "medusa_num_heads": 1}
    source = nets.save(tmp_path / "source", said, random_heads(1, 0, hidden=HIDDEN))
    assert convert_draft(source, "vllm", tmp_path / "out", str(target)).draft.facts["num_layers"] == 0
