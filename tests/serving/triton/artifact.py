# SPDX-License-Identifier: Apache-2.0
"""Artifacts to serve: one with tiny random models, and one with an echo ensemble that loads in half a second."""

from __future__ import annotations

import os
from pathlib import Path

from tests._support.manifests import resolved
from tests._support.tiny import convert, make_llama
from trtspec.backends.code_policy import ALLOW
from trtspec.backends.embedded.artifact import repository_step
from trtspec.core.hashing import file_segments, file_sha256
from trtspec.engine.settings import EngineSettings
from trtspec.serving.triton.repository_writer import ServingSettings
from trtspec.store.artifact import BackendRecord, Manifest, load_manifest
from trtspec.store.file_records import FileRecord

VOCAB = 257
SERVING = ServingSettings(max_batch_size=16)
ENGINE = EngineSettings(
    "draft_target", 4, max_batch_size=16, max_input_len=64, max_seq_len=128, max_num_tokens=512, device="cpu"
)
ECHO_CONFIG = """
name: "ensemble" backend: "python" max_batch_size: 8
model_transaction_policy { decoupled: true }
instance_group { kind: KIND_CPU count: 1 }
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
input { name: "max_tokens" data_type: TYPE_INT32 dims: 1 }
output { name: "text_output" data_type: TYPE_STRING dims: -1 }
"""
ECHO_MODEL = """
import os
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        print("echo starts", flush=True)
        BEFORE
    def execute(self, requests):
        for request in requests:
            FIRST
            tensor = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("text_output", tensor)])
            request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def write_manifest(root: Path, name: str, *, openai: bool = False) -> None:
    manifest = Manifest(
        recipe=resolved(name, serving={"openai": openai}),
        steps=(),
        files=records(root),
        tools={},
        gpu={},
        backend=BackendRecord(name="embedded", why="a test"),
    )
    (root / "manifest.json").write_bytes(manifest.render())


def records(root: Path) -> tuple[FileRecord, ...]:
    own = {"manifest.json", "reports", "attestations"}
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.relative_to(root).parts[0] not in own)
    return tuple(
        FileRecord(path=path.relative_to(root).as_posix(), size=path.stat().st_size, segments=segments)
        for path, segments in zip(files, file_segments(files), strict=True)
    )


def allow_code(*files: Path) -> None:
    """Allow this process and its children to run modified repository code."""
    allowed = {*os.environ.get(ALLOW, "").split(","), *(file_sha256(path) for path in files)}
    os.environ[ALLOW] = ",".join(sorted(allowed - {""}))


def rewrite_manifest(root: Path) -> None:
    """Rewrite the manifest of an artifact that a test has changed, and allow its whole repository to run."""
    manifest = load_manifest(root).model_copy(update={"files": records(root)})
    (root / "manifest.json").write_bytes(manifest.render())
    allow_code(*(path for path in (root / "model_repository").rglob("*") if path.is_file()))


def make_echo_artifact(root: Path, name: str = "echo", before: str = "pass", first: str = "pass") -> Path:
    """Write an artifact with an echo model; `before` runs while it loads, `first` before each response."""
    version = root / "model_repository" / "ensemble" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(ECHO_CONFIG)
    (version / "model.py").write_text(ECHO_MODEL.replace("BEFORE", before).replace("FIRST", first))
    allow_code(version / "model.py")
    write_manifest(root, name)
    return root


def make_tokenizer(root: Path) -> Path:
    """Save a tokenizer of single-byte tokens, so that most tokens are parts of characters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate(["<end>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    root.mkdir(parents=True)
    tokenizer.save(str(root / "tokenizer.json"))
    (root / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    return root


def emit_repository(
    out: Path, serving: ServingSettings = SERVING, engine: EngineSettings = ENGINE, *, has_draft: bool = True
) -> None:
    """Write the repository of the torch engine."""
    repository_step(serving, engine, has_draft=has_draft).emit(out)


def make_artifact(root: Path, name: str = "tiny") -> Path:
    """Write an artifact with a random target and draft."""
    make_tokenizer(root / "tokenizer")
    for seed, part in enumerate(("target", "draft")):
        source = make_llama(root.with_name(f"{root.name}-hf-{part}"), seed=seed, vocab_size=VOCAB)
        convert(source, root / "checkpoints" / part)
    emit_repository(root / "model_repository")
    write_manifest(root, name)
    return root
