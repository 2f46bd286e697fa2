# SPDX-License-Identifier: Apache-2.0
"""Invalid checkpoints: each case creates a valid one and damages one thing.

The code uses neither the package under test nor the safetensors library, because both are tested with these files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
HIDDEN, INTER, VOCAB = 8, 16, 4
GOOD_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": INTER,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 32, "rope_theta": 10000.0,
}  # fmt: skip
SHAPES: dict[str, list[int]] = {
    "model.embed_tokens.weight": [VOCAB, HIDDEN],
    "model.layers.0.input_layernorm.weight": [HIDDEN],
    "model.layers.0.post_attention_layernorm.weight": [HIDDEN],
    "model.layers.0.self_attn.q_proj.weight": [HIDDEN, HIDDEN],
    "model.layers.0.self_attn.k_proj.weight": [HIDDEN // 2, HIDDEN],
    "model.layers.0.self_attn.v_proj.weight": [HIDDEN // 2, HIDDEN],
    "model.layers.0.self_attn.o_proj.weight": [HIDDEN, HIDDEN],
    "model.layers.0.mlp.gate_proj.weight": [INTER, HIDDEN],
    "model.layers.0.mlp.up_proj.weight": [INTER, HIDDEN],
    "model.layers.0.mlp.down_proj.weight": [HIDDEN, INTER],
    "model.norm.weight": [HIDDEN],
    "lm_head.weight": [VOCAB, HIDDEN],
}
SHARD_OF = {name: f"{'ab'[number >= 6]}.safetensors" for number, name in enumerate(SHAPES)}
NORM, HEAD = "model.norm.weight", "lm_head.weight"
EMPTY = {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}

Header = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One invalid checkpoint: `spoil` damages a valid one, and the error must contain `words`."""

    name: str
    spoil: Callable[[Path], None]
    words: tuple[str, ...]

    def make(self, root: Path) -> Path:
        """Create the directory `root` and write the checkpoint to it."""
        self.spoil(make_good(root))
        return root


TOKENIZER = '{"version":"1.0","added_tokens":[],"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}'


def good_header(shapes: dict[str, list[int]] | None = None) -> Header:
    """Return the header of a file with these BF16 tensors, by default the valid checkpoint's."""
    header: Header = {}
    position = 0
    for name, shape in (SHAPES if shapes is None else shapes).items():
        end = position + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, end]}
        position = end
    return header


def data_bytes(header: Header) -> int:
    """Return the number of bytes of the tensors of a header."""
    return max((entry["data_offsets"][1] for entry in header.values()), default=0)


def pack(header: Header | bytes, data: int) -> bytes:
    """Return a safetensors file with this header and `data` zero bytes."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(data)


def make_good(root: Path) -> Path:
    """Write a valid checkpoint: one layer of Llama, and a tokenizer with one word."""
    root.mkdir(parents=True)
    (root / CONFIG).write_text(json.dumps(GOOD_CONFIG))
    (root / "tokenizer.json").write_text(TOKENIZER)
    (root / WEIGHTS).write_bytes(pack(good_header(), data_bytes(good_header())))
    return root


def make_sharded(root: Path, weight_map: Any = None, **index: Any) -> Path:
    """Split the weights of a checkpoint into two shards with an index; `weight_map` modifies the correct map."""
    (root / WEIGHTS).unlink()
    for shard in sorted(set(SHARD_OF.values())):
        header = good_header({name: shape for name, shape in SHAPES.items() if SHARD_OF[name] == shard})
        (root / shard).write_bytes(pack(header, data_bytes(header)))
    found = SHARD_OF if weight_map is None else weight_map(SHARD_OF)
    (root / INDEX).write_text(json.dumps({"weight_map": found, **index}))
    return root


def _raw(name: str, words: str, raw: bytes | Callable[[], bytes], *, data: int = 0) -> Case:
    """Return a case with these header bytes; large ones are created only when needed."""

    def spoil(root: Path) -> None:
        (root / WEIGHTS).write_bytes(pack(raw if isinstance(raw, bytes) else raw(), data))

    return Case(f"header: {name}", spoil, (WEIGHTS, words))


def _entry(name: str, words: str, tensor: str = NORM, **changes: Any) -> Case:
    """Return a case with one tensor's entry changed, or without a key if its value is None."""

    def spoil(root: Path) -> None:
        header = good_header()
        header[tensor] = {key: value for key, value in (header[tensor] | changes).items() if value is not None}
        (root / WEIGHTS).write_bytes(pack(header, data_bytes(good_header())))

    return Case(f"tensor: {name}", spoil, (WEIGHTS, f"'{tensor}'", words))


def _named(name: str, escaped: str) -> Case:
    """Return a case with an invalid tensor name, and its representation in the error."""

    def spoil(root: Path) -> None:
        header = good_header() | {name: EMPTY | {"data_offsets": [data_bytes(good_header())] * 2}}
        (root / WEIGHTS).write_bytes(pack(header, data_bytes(good_header())))

    return Case(f"name: {escaped[:20]}", spoil, (WEIGHTS, f"tensor name {escaped}", "path separator"))


def _tensors(name: str, words: tuple[str, ...], change: Callable[[dict[str, list[int]]], Any]) -> Case:
    """Return a case with a valid file whose tensors do not match config.json."""

    def spoil(root: Path) -> None:
        shapes = dict(SHAPES)
        change(shapes)
        (root / WEIGHTS).write_bytes(pack(good_header(shapes), data_bytes(good_header(shapes))))

    return Case(f"tensors: {name}", spoil, words)


def _config(name: str, words: str, **changes: Any) -> Case:
    return _config_text(name, words, lambda: json.dumps(GOOD_CONFIG | changes))


def _config_text(name: str, words: str, text: Callable[[], str]) -> Case:
    return Case(f"config: {name}", lambda root: _write(root / CONFIG, text()), (CONFIG, words))


def _index(name: str, words: tuple[str, ...], change: Callable[[dict[str, Any]], Any]) -> Case:
    return Case(f"index: {name}", lambda root: make_sharded(root, change), words)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def _link(path: Path, target: str | Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _leave(root: Path, name: str) -> None:
    """Move a file out of the directory and replace it by a link to it."""
    outside = root.parent / f"{root.name}.{name}"
    (root / name).rename(outside)
    _link(root / name, outside)


def _grow(path: Path, nbytes: int) -> None:
    """Extend a file to this size without writing."""
    with path.open("r+b") as file:
        file.truncate(nbytes)


def _claim(root: Path, header_bytes: int, file_bytes: int) -> None:
    (root / WEIGHTS).write_bytes(header_bytes.to_bytes(8, "little"))
    _grow(root / WEIGHTS, file_bytes)


def _overlap(root: Path) -> None:
    header = good_header()
    header[HEAD]["data_offsets"] = [offset - 4 for offset in header[HEAD]["data_offsets"]]
    (root / WEIGHTS).write_bytes(pack(header, data_bytes(header)))


def _hole(root: Path) -> None:
    header = good_header()
    header[HEAD]["data_offsets"] = [offset + 4 for offset in header[HEAD]["data_offsets"]]
    (root / WEIGHTS).write_bytes(pack(header, data_bytes(header)))


def _repeat(opening: str, closing: str, depth: int, times: int) -> bytes:
    """Return a header with a list of `times` values that are nested `depth` deep."""
    return ('{"a":[' + ",".join([opening * depth + "0" + closing * depth] * times) + "]}").encode()


def _empty_tensors(count: int) -> bytes:
    entry = '"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    return ("{" + ",".join(entry % number for number in range(count)) + "}").encode()


def _duplicate_tensor() -> bytes:
    raw = json.dumps(good_header())
    return f"{raw[:-1]}, {json.dumps(NORM)}: {json.dumps(EMPTY)}}}".encode()


MIB = 1 << 20
VALUES = "at most 600,000 are parsed"
NO_NUMBER = "has an invalid shape or offset"
ENTRY_KEYS = "must have exactly the keys dtype, shape and data_offsets"

HEADERS = [
    Case("file: empty", lambda root: (root / WEIGHTS).write_bytes(b""), (WEIGHTS, "truncated")),
    Case("file: seven bytes", lambda root: (root / WEIGHTS).write_bytes(bytes(7)), (WEIGHTS, "truncated")),
    Case("file: cut in the header", lambda root: _grow(root / WEIGHTS, 100), (WEIGHTS, "truncated: the header")),
    Case("file: cut in the data", lambda root: _cut(root / WEIGHTS, 5), (WEIGHTS, "truncated: its tensors need")),
    Case("file: surplus", lambda root: _grow(root / WEIGHTS, 9999), (WEIGHTS, "bytes after the last tensor")),
    Case("file: header beyond the end", lambda root: _claim(root, 2**64 - 1, 64), (WEIGHTS, "truncated: the header")),
    Case("file: huge header", lambda root: _claim(root, 1 << 40, 1 << 41), (WEIGHTS, "a header of 1,099,511,627,776")),
    Case(
        "file: a pointer",
        lambda root: _write(root / WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"),
        (WEIGHTS, "a Git LFS pointer", "git lfs pull"),
    ),
    Case(
        "file: a pickle",
        lambda root: (root / WEIGHTS).write_bytes(b"PK\3\4" + bytes(99)),
        (WEIGHTS, "truncated: the header"),
    ),
    Case("file: overlapping", _overlap, (WEIGHTS, f"'{HEAD}' begins at byte")),
    Case("file: a hole", _hole, (WEIGHTS, f"'{HEAD}' begins at byte")),
    _raw("no bytes", "not valid JSON", b""),
    _raw("cut JSON", "not valid JSON", b'{"a": {"dtype"'),
    _raw("a list", "not a JSON object", b"[1, 2]"),
    _raw("not UTF-8", "not valid JSON: 'utf-8' codec", b'{"\xff": 1}'),
    _raw("UTF-16", "not valid JSON", "{}".encode("utf-16")),
    _raw("NaN", "NaN is not a number", b'{"a": NaN}'),
    _raw("Infinity", "-Infinity is not a number", b'{"a": -Infinity}'),
    _raw("an endless number", "a number of 4,000,000 digits", lambda: b'{"a": ' + b"9" * 4_000_000 + b"}"),
    _raw("a number beyond float", "the number '1e999' is too large", b'{"a": 1e999}'),
    _raw("a duplicate tensor", f"duplicate key '{NORM}'", _duplicate_tensor),
    _raw("a duplicate key", "duplicate key 'dtype'", b'{"a": {"dtype": "U8", "dtype": "U8"}}'),
    _raw("metadata that is a list", "its __metadata__ does not map text to text", b'{"__metadata__": []}'),
    _raw("metadata of numbers", "its __metadata__ does not map text to text", b'{"__metadata__": {"a": 1}}'),
    _raw("name of half characters", "half a surrogate pair", b'{"\\ud800": {}}'),
    _raw("metadata of half characters", "half a surrogate pair", b'{"__metadata__": {"a": "\\ud800"}}'),
    _raw("spaces only", "at most 16,777,216 are read", lambda: b" " * (17 * MIB)),
    _raw("spaces", "not valid JSON", lambda: b" " * (16 * MIB)),
    _raw("wide characters", "bytes of text in memory", lambda: b"{" + b" " * (15 * MIB) + '"🙂": 1}'.encode()),
    _raw("one deep list", VALUES, lambda: b"[" * (16 * MIB)),
    _raw("a deep list", "JSON nested more than 32 deep", lambda: _repeat("[", "]", 100_000, 1)),
    _raw("many deep lists", "JSON nested more than 32 deep", lambda: _repeat("[", "]", 900, 650)),
    _raw("many deep mappings", "JSON nested more than 32 deep", lambda: _repeat('{"a":', "}", 900, 650)),
    _raw("empty lists", VALUES, lambda: b'{"a":[' + b"[]," * (5 * MIB) + b"[]]}"),
    _raw("a million empty tensors", "a header of 56,888,891 bytes", lambda: _empty_tensors(1_000_000)),
    _raw("too many empty tensors", VALUES, lambda: _empty_tensors(250_000)),
    _raw(
        "most keys",
        "'0' must have exactly the keys",
        lambda: json.dumps({f"{n:x}": f"{n:x}" for n in range(590_000)}).encode(),
    ),
]

ENTRIES = [
    _entry("no dtype", ENTRY_KEYS, dtype=None),
    _entry("no shape", ENTRY_KEYS, shape=None),
    _entry("no offsets", ENTRY_KEYS, data_offsets=None),
    _entry("another key", ENTRY_KEYS, strides=[1]),
    _entry("unknown dtype", "has the unknown dtype 'F33'", dtype="F33"),
    _entry("dtype is a list", "has the unknown dtype", dtype=["BF16"]),
    _entry("shape is text", NO_NUMBER, shape="8"),
    _entry("shape is a number", NO_NUMBER, shape=8),
    _entry("negative shape", NO_NUMBER, shape=[-8]),
    _entry("negative shapes", NO_NUMBER, shape=[-2, -4]),
    _entry("fractional shape", NO_NUMBER, shape=[8.0]),
    _entry("boolean shape", NO_NUMBER, shape=[8, True]),
    _entry("shape beyond 64 bits", NO_NUMBER, shape=[1 << 64]),
    _entry("shape whose product wraps around", "is too large", shape=[1 << 32, (1 << 32) + 8]),
    _entry("empty, but huge", "is too large", shape=[1 << 40, 1 << 40, 0]),
    _entry("many dimensions", "more than 8 dimensions", shape=[8] + [1] * 8),
    _entry("very many dimensions", "more than 8 dimensions", shape=[1] * 100_000),
    _entry("one offset", NO_NUMBER, data_offsets=[0]),
    _entry("three offsets", NO_NUMBER, data_offsets=[0, 8, 16]),
    _entry("negative offsets", NO_NUMBER, data_offsets=[-16, 0]),
    _entry("offsets that run back", NO_NUMBER, data_offsets=[32, 16]),
    _entry("offsets beyond the end", "begins at byte 1,099,5", HEAD, data_offsets=[1 << 40, (1 << 40) + 64]),
    _entry("too few bytes", "does not fill its 16 bytes", shape=[9]),
]

NAMES = [
    _named("../../etc/passwd", "'../../etc/passwd'"),
    _named("/tmp/x", "'/tmp/x'"),
    _named("a\\b", r"'a\\b'"),
    _named("..", "'..'"),
    _named("", "''"),
    _named("a\nerror: b", r"'a\nerror: b'"),
    _named("a\x00b", r"'a\x00b'"),
    _named("\x1b[2J", r"'\x1b[2J'"),
    _named("\x9b2J", r"'\x9b2J'"),
    _named("\u202eabc", r"'\u202eabc'"),
    _named("x" * 600, f"'{'x' * 200}...'"),
]

TENSORS = [
    _tensors("one missing", (f"{NORM}: missing",), lambda shapes: shapes.pop(NORM)),
    _tensors("one too many", ("model.x: no rule uses it",), lambda shapes: shapes.update({"model.x": [3]})),
    _tensors(
        "a shape that is not config.json's",
        (f"{HEAD}: [5, 8] in {WEIGHTS}, but [4, 8] according to config.json",),
        lambda shapes: shapes.update({HEAD: [5, 8]}),
    ),
    Case(
        "tensors: an unsupported dtype",
        lambda root: (root / WEIGHTS).write_bytes(
            (root / WEIGHTS).read_bytes().replace(b'"BF16"', b'"I16" ').replace(b'"I16" ', b'"BF16"', 11)
        ),
        (f"{HEAD}: dtype I16 in {WEIGHTS}",),
    ),
]

CONFIGS = [
    Case("config: missing", lambda root: (root / CONFIG).unlink(), (CONFIG, "No such file")),
    _config_text("cut", "not valid JSON", lambda: '{"a": '),
    _config_text("a list", "not a JSON object", lambda: "[]"),
    _config_text("too large", "larger than 1,048,576 bytes", lambda: " " * MIB + "{}"),
    _config_text("deep", "JSON nested more than 32 deep", lambda: '{"a": ' + "[" * 500 + "]" * 500 + "}"),
    _config_text("very deep", "JSON nested more than 32 deep", lambda: '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    _config_text("many values", "at most 300,000 are parsed", lambda: '{"a": [' + "0," * 500_000 + "0]}"),
    _config_text("a duplicate key", "duplicate key 'a'", lambda: '{"a": 1, "a": 2}'),
    _config_text("NaN", "NaN is not a number", lambda: '{"rope_theta": NaN}'),
    _config_text("an endless number", "a number of 100,000 digits", lambda: '{"a": ' + "9" * 100_000 + "}"),
    _config("no architecture", "architectures is null", architectures=None),
    _config("many architectures", 'architectures is ["a", "a"', architectures=["a"] * 100_000),
    _config("architecture is a mapping", "architectures is [{}]", architectures=[{}]),
    _config("no hidden size", "lacks 'hidden_size'", hidden_size=None),
    _config("negative size", "hidden_size is -8, expected a positive number", hidden_size=-8),
    _config("fractional size", "hidden_size is 8.0, expected int", hidden_size=8.0),
    _config("boolean size", "hidden_size is true, expected int", hidden_size=True),
    _config("size is text", "hidden_size is '8', expected int", hidden_size="8"),
    _config("size beyond 64 bits", "vocab_size is 18446744073709551616", vocab_size=1 << 64),
    _config(
        "heads not divisible",
        "num_attention_heads 3 is not a multiple of",
        num_attention_heads=3,
        num_key_value_heads=2,
    ),
    _config("hidden size not divisible", "hidden_size 8 is not a multiple of", num_attention_heads=3),
    _config("odd head size", "head size 3 is odd", head_dim=3),
    _config("no heads", "num_attention_heads is 0", num_attention_heads=0),
    _config("2^31 layers", "num_hidden_layers is 2147483648", num_hidden_layers=1 << 31),
    _config("an unsupported dtype", "dtype 'int8' is not supported", dtype="int8"),
    _config("rope of numbers", "rope_scaling is 3, expected a mapping", rope_scaling=3),
    _config("unknown rope", "rope type 'spiral' is not supported", rope_scaling={"rope_type": "spiral", "factor": 2.0}),
]

INDEXES = [
    Case("index: cut", lambda root: _write(root / INDEX, '{"weight_map": '), (INDEX, "not valid JSON")),
    Case("index: a list", lambda root: _write(root / INDEX, "[]"), (INDEX, "not a JSON object")),
    Case("index: no map", lambda root: _write(root / INDEX, "{}"), (INDEX, "its weight_map does not map")),
    Case("index: huge", lambda root: (root / INDEX).touch() or _grow(root / INDEX, 1 << 40), (INDEX, "larger than")),
    Case(
        "index: a bomb",
        lambda root: _write(root / INDEX, '{"a":[' + "[]," * 5_000_000 + "0]}"),
        (INDEX, "at most 300,000"),
    ),
    _index("numbers for shards", (INDEX, "its weight_map does not map"), lambda found: found | {NORM: 3}),
    _index("a shard above", (INDEX, "shard '../b.safetensors'"), lambda found: found | {NORM: "../b.safetensors"}),
    _index("an absolute shard", (INDEX, "shard '/b.safetensors'"), lambda found: found | {NORM: "/b.safetensors"}),
    _index("the directory above", (INDEX, "shard '..'"), lambda found: found | {NORM: ".."}),
    _index("a shard below", (INDEX, "shard 'c/b.safetensors'"), lambda found: found | {NORM: "c/b.safetensors"}),
    _index("a pickle", (INDEX, "shard 'model.bin'"), lambda found: found | {NORM: "model.bin"}),
    _index("a long shard", (INDEX, "shard 'xxx"), lambda found: found | {NORM: "x" * 100_000}),
    _index(
        "a missing shard",
        (INDEX, "names the shard c.safetensors, which is missing"),
        lambda f: f | {NORM: "c.safetensors"},
    ),
    _index(
        "the wrong shard", (INDEX, f"maps '{NORM}' to a.safetensors"), lambda found: found | {NORM: "a.safetensors"}
    ),
    _index("a tensor that is not", (INDEX, "maps 'x' to a.safetensors"), lambda found: found | {"x": "a.safetensors"}),
    _index(
        "a tensor forgotten",
        (INDEX, f"lacks '{NORM}', which b.safetensors contains"),
        lambda found: {name: shard for name, shard in found.items() if name != NORM},
    ),
    _index("nothing", ("tensors do not add up",), lambda found: {}),
]

FILES = [
    Case("files: weights are a pipe", lambda root: _replace_by_pipe(root / WEIGHTS), (WEIGHTS, "not a regular file")),
    Case("files: config is a pipe", lambda root: _replace_by_pipe(root / CONFIG), (CONFIG, "not a regular file")),
    Case(
        "files: weights are a directory", lambda root: _replace_by_directory(root / WEIGHTS), (WEIGHTS, "not a regular")
    ),
    Case(
        "files: config is a directory",
        lambda root: _replace_by_directory(root / CONFIG),
        (CONFIG, "not a regular file"),
    ),
    Case(
        "files: weights are elsewhere", lambda root: _leave(root, WEIGHTS), (WEIGHTS, "which is outside its directory")
    ),
    Case("files: config is elsewhere", lambda root: _leave(root, CONFIG), (CONFIG, "which is outside its directory")),
    Case(
        "files: the tokenizer is elsewhere",
        lambda root: _leave(root, "tokenizer.json"),
        ("tokenizer.json", "which is outside its directory"),
    ),
    Case(
        "files: weights are a device",
        lambda root: _link(root / WEIGHTS, "/dev/zero"),
        (WEIGHTS, "a link to '/dev/zero'"),
    ),
    Case("files: a link to itself", lambda root: _link(root / WEIGHTS, WEIGHTS), (WEIGHTS, "symbolic links")),
    Case("files: a link to nothing", lambda root: _link(root / WEIGHTS, "x"), (WEIGHTS, "No such file")),
    Case(
        "files: a name that is not text",
        lambda root: (root / WEIGHTS).rename(root / "\udcff.safetensors"),
        (r"the file name '\udcff.safetensors' has unprintable characters",),
    ),
    Case(
        "files: a huge tokenizer",
        lambda root: _grow(root / "tokenizer.json", 1 << 40),
        ("tokenizer.json", "larger than 67,108,864 bytes"),
    ),
]

CASES = [*HEADERS, *ENTRIES, *NAMES, *TENSORS, *CONFIGS, *INDEXES, *FILES]
