# SPDX-License-Identifier: Apache-2.0
"""Version knowledge from wheels: range requests to a failing index, what is read, compared, written and validated."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from benchmarks.upstream import __main__ as upstream
from benchmarks.upstream import edge_llm, sglang, tensorrt_llm, vllm
from benchmarks.upstream.engines import ENGINES, SGLANG_DATA, SGLANG_FACTS, VLLM_DATA, Engine
from benchmarks.upstream.fetch import Fetcher, FetchError, split_credentials
from benchmarks.upstream.index import Index, configured_index, pick_wheel, pip_settings
from benchmarks.upstream.published import published_releases
from benchmarks.upstream.review import pinned_versions, review, review_sources
from benchmarks.upstream.strict import problems
from benchmarks.upstream.syntax import class_fields, options, parse_field
from benchmarks.upstream.tables import load_table
from benchmarks.upstream.wheel import Wheel, open_local, open_remote
from tests.benchmarks.index_double import IndexDouble, make_wheel, serving

PINNED = pinned_versions()["sglang"]
QUICK = Fetcher(wait_s=0.5, total_s=1.0)
SRT = "sglang/srt"
SGLANG = {
    f"{SRT}/server_args.py": """
raise SystemExit("imported")
from typing import Literal, Optional
Mode = Literal["a", "b"]
class ServerArgs:
    model_path: str
    speculative_algorithm: Optional[str] = None
    speculative_num_steps: Optional[int] = None
    speculative_mode: A[Optional[Mode], "help"] = "a"
""",
    f"{SRT}/arg_groups/fields/spec.py": """
class Spec(Struct):
    speculative_use_block_verification: A[bool, 'x'] = False
""",
    f"{SRT}/arg_groups/speculative_hook.py": 'if cfg.speculative_algorithm == "NEXTN":\n    pass\n',
    f"{SRT}/speculative/spec_info.py": "class SpeculativeAlgorithm(Enum):\n    EAGLE = auto()\n    NONE = auto()\n",
    f"{SRT}/speculative/adaptive_spec_params.py": "all(isinstance(s, int) and s >= 0 for s in steps)\n",
    f"{SRT}/configs/model_config.py": """
ARCHS = ("MiMoForCausalLM",)
class ModelConfig:
    def _config_draft_model(self):
        if self.hf_config.architectures[0] in ["GlmForCausalLM"]:
            self.hf_config.architectures[0] = "GlmForCausalLMNextN"
        if self.hf_config.architectures[0] in ARCHS:
            pass
""",
    f"{SRT}/models/eagle.py": "\ufeffEntryClass = [LlamaForCausalLMEagle, LlamaForCausalLM]\n",
    f"{SRT}/models/dflash.py": "EntryClass = [DFlashDraftModel, OddDraftModel]\n",
}
NAME = "sglang-{}-cp310-cp310-manylinux_2_34_x86_64.whl"


@pytest.fixture
def index() -> Iterator[IndexDouble]:
    with serving() as server:
        yield server


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """SGLang with a data file that knows release 0.5.1, which equals the wheel of SGLANG."""
    path = tmp_path / "versions.yaml"
    path.write_text(
        f"# head\nsources:\n  0.5.1: {{wheel: {NAME.format('0.5.1')},\n    sha256: {'0' * 64}}}\n"
        "algorithms:\n  0.5.1..: [EAGLE, NEXTN]\n"
        "fields:\n  0.5.1..: [speculative_algorithm, speculative_mode, speculative_num_steps,\n"
        "    speculative_use_block_verification]\n"
        "nets_eagle:\n  0.5.1..: [LlamaForCausalLMEagle]\nnets_eagle3:\nnets_dflash:\n  0.5.1..: [DFlashDraftModel]\n"
        "nets_dspark:\nnets_gemma4_mtp:\n"
        "mtp_targets:\n  0.5.1..: [GlmForCausalLM, MiMoForCausalLM]\ndoes:\n  0.5.1..: [schedule]\n"
    )
    [known] = [each for each in ENGINES if each.backend == "sglang"]
    data = (path, SGLANG_FACTS)
    return replace(known, data=data, known=lambda: load_table(*data).facts)


def index_of(server: IndexDouble) -> Index:
    return Index(f"{server.url}/simple", QUICK)


def opened(server: IndexDouble) -> Wheel:
    """Return the only wheel of sglang on the index."""
    [files] = index_of(server).releases("sglang").values()
    found = pick_wheel(files)
    assert found
    return open_remote(found, QUICK)


def test_members_are_read_without_downloading_the_wheel(index: IndexDouble) -> None:
    wheel = make_wheel(SGLANG, padding=2 << 20)
    index.files[NAME.format("0.5.1")] = wheel
    found = opened(index)
    names = sglang.members(found.names())
    assert set(names) == SGLANG.keys()
    found.prefetch(names)
    assert {name: found.text(name) for name in names} == {name: text.lstrip("\ufeff") for name, text in SGLANG.items()}
    ranges = [headers["Range"] for path, headers in index.requests if path.startswith("/files/")]
    assert len(ranges) == found.file.requests <= 3  # type: ignore[attr-defined]
    assert found.file.fetched < 300_000 < len(wheel)  # type: ignore[attr-defined]


def test_listing_has_versions_in_order_digests_and_no_yanked_files(index: IndexDouble) -> None:
    for version in ("0.5.10", "0.5.9", "0.5.9.post1", "0.5.11"):
        index.files[NAME.format(version)] = version.encode()
    index.yanked.add(NAME.format("0.5.11"))
    index.files["sglang-0.5.12.tar.gz"] = b"sources"
    index.files["sglang-nightly.zip"] = b"?"
    found = index_of(index).releases("sglang")
    assert list(map(str, found)) == ["0.5.9", "0.5.9.post1", "0.5.10", "0.5.12"]
    assert pick_wheel(found[Version("0.5.12")]) is None
    assert found[Version("0.5.9")][0].url == f"{index.url}/files/{NAME.format('0.5.9')}"
    assert found[Version("0.5.9")][0].sha256 == hashlib.sha256(b"0.5.9").hexdigest()


FAULTS = {
    "whole": "does not support range requests (status 200)",
    "stall": "timed out",
    "trickle": "took too long",
    "truncate": "IncompleteRead|the response ended after",
    "shifted": "asked for bytes",
    "other-total": "not .* as the index states",
    "long": "the response exceeds",
    "html": "not a listing in the JSON form",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_failing_index_is_reported_in_bounded_time(index: IndexDouble, fault: str) -> None:
    index.files[NAME.format("0.5.1")] = make_wheel(SGLANG, padding=1 << 17)
    index.fault = fault
    started = time.monotonic()
    pattern = FAULTS[fault].replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(FetchError, match=pattern):
        opened(index)
    assert time.monotonic() - started < 10


def test_missing_file_and_unreachable_index_are_reported(index: IndexDouble) -> None:
    index.files[NAME.format("0.5.1")] = make_wheel(SGLANG)
    [files] = index_of(index).releases("sglang").values()
    index.files.clear()
    with pytest.raises(FetchError, match="404"):
        open_remote(files[0], QUICK)
    with pytest.raises(FetchError, match=r"127\.0\.0\.1:1/simple"):
        Index("http://127.0.0.1:1/simple", QUICK).releases("sglang")


def test_damaged_wheels_are_reported(tmp_path: Path) -> None:
    whole = make_wheel(SGLANG)
    path = tmp_path / NAME.format("0.5.1")
    path.write_bytes(whole.replace(b"PK\x05\x06", b"PK\x00\x00"))
    with pytest.raises(FetchError, match="not a zip"):
        open_local(path)
    place = whole.index(f"{SRT}/server_args.py".encode()) + 60
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
    with pytest.raises(FetchError, match=r"server_args\.py"):
        open_local(path).text(f"{SRT}/server_args.py")
    path.write_bytes(make_wheel({"a.py": "x" * (9 << 20), "b.py": "def"}))
    with pytest.raises(FetchError, match=r"a\.py has 9437184 bytes"):
        open_local(path).text("a.py")
    with pytest.raises(FetchError, match=r"b\.py: invalid syntax"):
        open_local(path).tree("b.py")


def test_wheel_over_the_budget_is_refused(index: IndexDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    index.files[NAME.format("0.5.1")] = make_wheel(SGLANG, padding=1 << 20)
    found = opened(index)
    found.file.budget = 100_000  # type: ignore[attr-defined]
    with pytest.raises(FetchError, match="more than 100000 bytes are needed"):
        found.text("package/kernels.so")


def test_credentials_stay_with_their_host_and_out_of_messages(index: IndexDouble) -> None:
    url, host, authorization = split_credentials(f"http://me:p%40ss@127.0.0.1:{index.server_port}/simple")
    assert (url, authorization) == (f"{index.url}/simple", "Basic bWU6cEBzcw==")
    fetcher = replace(QUICK, credentials={host: authorization})
    with serving() as other:
        index.files["a.whl"] = other.files["a.whl"] = b"data"
        index.redirect = other.url
        fetcher.get(f"{index.url}/files/a.whl", 100)
        assert index.requests[-1][1]["Authorization"] == authorization
        assert "Authorization" not in other.requests[-1][1]
    with pytest.raises(FetchError) as raised:
        Fetcher().get("http://me:secret@127.0.0.1:1/", 100)
    assert "secret" not in str(raised.value)


def test_index_comes_from_the_configuration_of_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:word@mirror.example/simple")
    assert pip_settings()["index-url"] == "https://user:word@mirror.example/simple"
    found = configured_index()
    assert (found.url, list(found.fetcher.credentials)) == ("https://mirror.example/simple", ["mirror.example"])
    monkeypatch.setattr("benchmarks.upstream.index.pip_settings", dict)
    help_text = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--help"],
        env={name: value for name, value in os.environ.items() if not name.startswith("PIP_")} | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert configured_index().url in help_text


def test_facts_of_sglang_are_read_and_unchanged_release_is_written(index: IndexDouble, engine: Engine) -> None:
    index.files[NAME.format("0.5.1")] = index.files[NAME.format("0.5.2")] = make_wheel(SGLANG)
    result = review(engine, index_of(index))
    assert [each.version for each in result.reads] == ["0.5.2"]
    assert result.changes == {"0.5.2": ("0.5.1", {})}
    assert result.reads[0].facts["unknown"] == {"OddDraftModel"}
    assert upstream.write(result, reviewed=False) == "written: 0.5.2"
    assert engine.data
    table = load_table(*engine.data)
    assert list(table.sources) == ["0.5.1", "0.5.2"]
    assert table.facts["0.5.2"] == table.facts["0.5.1"]
    assert table.sources["0.5.2"] == {"wheel": NAME.format("0.5.2"), "sha256": result.reads[0].sha256}
    assert table.head == "# head"
    assert table.render() == engine.data[0].read_text()


def test_new_fields_and_methods_wait_for_review(index: IndexDouble, engine: Engine) -> None:
    changed = dict(SGLANG)
    changed[f"{SRT}/server_args.py"] = SGLANG[f"{SRT}/server_args.py"].replace(
        "speculative_num_steps: Optional[int] = None", "speculative_depth: int = 7"
    )
    changed[f"{SRT}/speculative/spec_info.py"] += "    UNO = auto()\n"
    index.files[NAME.format("0.5.2")] = make_wheel(changed)
    result = review(engine, index_of(index))
    said = "\n".join(upstream.explain(result))
    assert "fields             + speculative_depth: int = 7" in said
    assert "fields             - speculative_num_steps" in said
    assert "algorithms         + UNO" in said
    assert upstream.write(result, reviewed=False).startswith("written: nothing; not 0.5.2")
    assert list(engine.known()) == ["0.5.1"]
    assert upstream.write(result, reviewed=True) == "written: 0.5.2"
    assert engine.known()["0.5.2"]["algorithms"] == {"EAGLE", "NEXTN", "UNO"}


def test_reviewed_names_are_no_difference_until_they_are_known(index: IndexDouble, engine: Engine) -> None:
    changed = dict(SGLANG)
    changed[f"{SRT}/speculative/spec_info.py"] += "    UNO = auto()\n"
    index.files[NAME.format("0.5.2")] = make_wheel(changed)
    ((_, (new, _)),) = review(engine, index_of(index)).changes["0.5.2"][1].items()
    assert new == ["UNO"]
    reviewed = replace(engine, reviewed=frozenset({"UNO"}))
    assert review(reviewed, index_of(index)).changes["0.5.2"] == ("0.5.1", {})
    facts = engine.known()["0.5.1"]
    aware = replace(reviewed, known=lambda: {"0.5.1": facts | {"algorithms": facts["algorithms"] | {"UNO"}}})
    assert review(aware, index_of(index)).changes["0.5.2"] == ("0.5.1", {})


def test_newest_versions_are_shown_with_the_tested_ones(index: IndexDouble, engine: Engine) -> None:
    index.files[NAME.format("0.5.2")] = make_wheel(SGLANG)
    assert upstream.explain(review(engine, index_of(index)))[0] == f"sglang: newest 0.5.2, tested {PINNED}"


def test_exit_status(
    index: IndexDouble, engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    documents: dict[str, Any] = {"recipe": {"model_path": "x", "speculative_algorithm": "EAGLE"}}
    monkeypatch.setattr(upstream, "ENGINES", (engine,))
    monkeypatch.setattr(upstream, "emit", lambda engine, versions: dict.fromkeys(versions, documents))
    index.files[NAME.format("0.5.2")] = make_wheel(SGLANG)
    assert upstream.main(["--strict"], index_of(index)) == 0
    documents["recipe"] |= {"speculative_algorithm": "DSPARK", "speculative_steps": 3}
    assert upstream.main([], index_of(index)) == 1
    said = capsys.readouterr().out
    assert "PROBLEM recipe 0.5.2: speculative_algorithm: 'DSPARK' is not of the type str | None" in said
    assert "PROBLEM recipe 0.5.2: speculative_steps: no such field" in said
    index.fault = "whole"
    assert upstream.main([], index_of(index)) == 0
    assert upstream.main(["--strict"], index_of(index)) == 2
    assert "SKIPPED sglang 0.5.2: " in capsys.readouterr().out
    index.fault, index.files = "", {"sglang-0.5.2.tar.gz": b"no Python"}
    assert upstream.main(["--strict"], index_of(index)) == 2
    assert "without a wheel: only sglang-0.5.2.tar.gz (9 bytes)" in capsys.readouterr().out
    index.files = {NAME.format("0.5.2"): make_wheel({"sglang/other.py": ""})}
    assert upstream.main(["--strict"], index_of(index)) == 2
    assert "the reader needs an update" in capsys.readouterr().out


LLM_ARGS = """
from typing import Literal, Optional
class StrictBaseModel: pass
class DecodingBaseConfig(StrictBaseModel):
    max_draft_len: Optional[int] = Field(default=None)
    _private: int = 0
class DSparkDecodingConfig(DecodingBaseConfig):
    decoding_type: Literal["DSpark"] = "DSpark"
    attention_backend: Literal["AUTO", "TRTLLM"] = "AUTO"
class KvCacheConfig(StrictBaseModel):
    dtype: Literal["auto", "fp8"] = "auto"
class BaseLlmArgs(StrictBaseModel):
    model: str
    kv_cache_config: KvCacheConfig
    speculative_config: Optional[SpeculativeConfig] = None
class TorchLlmArgs(BaseLlmArgs):
    backend: Literal["pytorch"] = "pytorch"
"""


def test_documents_of_the_llm_api_are_validated_by_decoding_type(tmp_path: Path) -> None:
    path = tmp_path / "tensorrt_llm-1.5.0-py3-none-any.whl"
    path.write_bytes(make_wheel({tensorrt_llm.ARGUMENTS: LLM_ARGS}))
    wheel = open_local(path)
    fields = {"DSpark.max_draft_len", "DSpark.attention_backend"}
    assert tensorrt_llm.read(wheel) == {"decoding_types": {"DSpark"}, "fields": fields, "unknown": set()}
    schema = tensorrt_llm.schema(wheel)
    drafting = {"decoding_type": "DSpark", "max_draft_len": 4}
    good = {"model": "x", "backend": "pytorch", "kv_cache_config": {"dtype": "fp8"}, "speculative_config": drafting}
    assert problems(good, schema) == []
    wrong = {"kv_cache_config": {"dtype": "fp4"}, "speculative_config": {**drafting, "max_draft_len": "4", "depth": 2}}
    assert problems(good | wrong, schema) == [
        "kv_cache_config.dtype: 'fp4' is not one of ['auto', 'fp8']",
        "speculative_config.max_draft_len: '4' is not of the type Optional[int]",
        "speculative_config.depth: no such field",
    ]
    unknown = {"speculative_config": {"decoding_type": "Eagle"}}
    assert problems(unknown, schema) == ["speculative_config: no decoding_type Eagle"]


OLD_LLM_ARGS = """
class DecodingBaseConfig(BaseModel):
    max_draft_len: Optional[int] = None
    @classmethod
    def from_dict(cls, data):
        kinds = {"NGram": NGramDecodingConfig, "Lookahead": LookaheadDecodingConfig}
class NGramDecodingConfig(DecodingBaseConfig):
    max_matching_ngram_size: int = 0
    decoding_type: ClassVar[str] = "NGram"
class LookaheadDecodingConfig(DecodingBaseConfig): pass
class TorchLlmArgs(BaseModel):
    speculative_config: Optional[SpeculativeConfig] = None
class KvCacheConfig(BaseModel): pass
"""


def git(root: Path, *words: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(root), *identity, *words], check=True, capture_output=True, timeout=60)


def test_sources_of_a_checkout_are_read_at_their_version_tags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "checkout"
    git(tmp_path, "init", "--quiet", str(root))
    for version, text in {"0.21.0": "broken(", "1.2.1": OLD_LLM_ARGS, "1.4.0rc1": LLM_ARGS}.items():
        for name, content in {tensorrt_llm.ARGUMENTS: text, tensorrt_llm.VERSION: "raise SystemExit"}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        git(root, "add", ".")
        git(root, "commit", "--quiet", "-m", version)
        git(root, "tag", f"v{version}")
    git(root, "tag", "v-next")
    [engine] = [each for each in ENGINES if each.backend == "llmapi"]
    result = review_sources(engine, root)
    assert [(each.version, each.wheel) for each in result.reads] == [
        ("1.2.1", "checkout@v1.2.1"),
        ("1.4.0rc1", "checkout@v1.4.0rc1"),
    ]
    old, new = (each.facts for each in result.reads)
    fields = {"NGram.max_draft_len", "NGram.max_matching_ngram_size"}
    assert old == {"decoding_types": {"NGram"}, "fields": fields, "unknown": {"Lookahead"}}
    assert new["decoding_types"] == {"DSpark"}
    assert "NGram" in result.changes["1.4.0rc1"][1]["decoding_types"][1]
    wrong = {"recipe": {"speculative_config": {"decoding_type": "DSpark", "max_draft_len": "4"}}}
    monkeypatch.setattr(upstream, "emit", lambda engine, versions: dict.fromkeys(versions, wrong))
    assert upstream.main(["tensorrt-llm", "--source", str(root)]) == 1
    said = capsys.readouterr().out
    assert "PROBLEM recipe 1.4.0rc1: speculative_config.max_draft_len: '4' is not of the type" in said
    assert "PROBLEM recipe 1.2.1: speculative_config: no decoding_type DSpark" in said


def test_sources_without_tags_have_the_version_of_their_file(tmp_path: Path) -> None:
    [engine] = [each for each in ENGINES if each.backend == "llmapi"]
    (result,) = review_sources(engine, tmp_path).skipped
    assert result.endswith("has neither version tags nor a version in tensorrt_llm/version.py")
    for name, text in {tensorrt_llm.ARGUMENTS: LLM_ARGS, tensorrt_llm.VERSION: '__version__ = "1.5.0rc2"'}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert [each.version for each in review_sources(engine, tmp_path).reads] == ["1.5.0rc2"]
    (tmp_path / tensorrt_llm.ARGUMENTS).write_text("class (")
    (said,) = review_sources(engine, tmp_path).skipped
    assert "invalid syntax" in said


def test_engine_without_wheels_is_compared_with_recorded_fields(
    index: IndexDouble, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(upstream, "emit", lambda engine, versions: {version: {} for version in versions})
    index.files = {"tensorrt_llm-1.4.0rc1.tar.gz": b"no Python"}
    assert upstream.main(["tensorrt-llm", "--strict"], index_of(index)) == 0
    said = capsys.readouterr().out
    assert said.count("no difference") == said.count("recorded") == len(published_releases())


def test_edge_llm_methods_keys_and_models_are_read(tmp_path: Path) -> None:
    members = {
        edge_llm.BUILDER: 'parser.add_argument("--spec-type", choices=("none", "mtp"), default="none")\n',
        edge_llm.MODELS: "F = (ModelFamily('a', {'llama': _set(Component.LLM)}, {}),\n"
        " ModelFamily('b', {n: _set(Component.LLM, Component.VISUAL) for n in ('phi4mm',)}, {}))\n",
        edge_llm.ENGINE: "class LLM:\n"
        "    def __init__(self, model: str, *, draft_step: Optional[int] = None, speculative_config=None): pass\n",
        edge_llm.CONFIG: "class SpeculativeConfig:\n    def parse(cls, value):\n"
        "        supported_keys = {'method', 'model'}\n"
        "        if method not in {'mtp'}:\n            raise ValueError\n",
    }
    path = tmp_path / "tensorrt_edgellm-0.12.0-py3-none-any.whl"
    path.write_bytes(make_wheel(members))
    wheel = open_local(path)
    facts = {"methods": {"mtp"}, "fields": {"method", "model"}, "models": {"llama"}, "unknown": {"phi4mm"}}
    assert edge_llm.read(wheel) == facts
    llm = {"draft_step": 1.5, "speculative_config": {"method": "mtp"}}
    document = {"build": {"spec-type": "dflash"}, "llm": llm}
    assert problems(document, edge_llm.schema(wheel)) == [
        "build.spec-type: 'dflash' is not one of ['mtp', 'none']",
        "llm.draft_step: 1.5 is not of the type Optional[int]",
    ]


def test_fields_are_read_with_types_defaults_and_literals() -> None:
    tree = ast.parse(
        "Small = Literal['a', 1]\nAll = Literal[Small, 'b']\n"
        "class Base:\n    first: All | None = None\n    kind: ClassVar[str] = 'x'\n"
        "class Config(Base):\n    number: 'int' = 3\n    share: float = 0.5\n    other: Path | str\n"
        "    on: bool = False\n"
    )
    fields = class_fields([tree], "Config")
    assert {name: (each.type, each.default) for name, each in fields.items()} == {
        "first": ("All | None", "None"),
        "number": ("int", "3"),
        "share": ("float", "0.5"),
        "other": ("Path | str", ""),
        "on": ("bool", "False"),
    }
    good = [
        ("first", "b"),
        ("first", 1),
        ("first", None),
        ("number", 2),
        ("share", 1),
        ("other", object()),
        ("on", True),
    ]
    assert [fields[name].problem(value) for name, value in good] == [""] * len(good)
    wrong = [("first", "c"), ("number", True), ("number", 1.0), ("on", 1)]
    assert all(fields[name].problem(value) for name, value in wrong)


@pytest.mark.parametrize(
    ("annotation", "good", "wrong"),
    [
        ("PositiveInt | None", [1, None], [0, -1, 1.5, True, "1"]),
        ("NonNegativeFloat", [0, 0.5], [-0.1, None]),
        ("Annotated[float, Ge(ge=0), Le(le=1)] | None", [0, 1, 0.5, None], [-1, 1.01, "0.5"]),
        ("dict[int, int] | None", [{1: 2}, {}, None], [{1: "2"}, {"1": 2}, [1], {1: True}]),
        ("list[list[int]]", [[[0], [0, 1]], []], [[0], [["0"]]]),
        ("Literal['a', 1] | None", ["a", 1, None], ["b", 2]),
        ("dict[str, Any]", [{"a": object()}], [["a"]]),
        ("Unknown", [object()], []),
    ],
)
def test_field_accepts_values_within_its_type_and_bounds(annotation: str, good: list[Any], wrong: list[Any]) -> None:
    field = parse_field("name", annotation)
    assert [field.problem(value) for value in good] == [""] * len(good)
    assert all(field.problem(value) for value in wrong)


def test_bounds_in_the_default_of_a_field_are_read() -> None:
    tree = ast.parse("class Config:\n    share: Optional[float] = Field(default=0.9, ge=0, le=1)\n")
    share = class_fields([tree], "Config")["share"]
    assert share.problem(1.5) == "1.5 is not le 1"
    assert not share.problem(1.0)


def test_options_of_a_parser_are_read_with_choices() -> None:
    found = options(ast.parse("p.add_argument('-k', '--kind', choices=['a', 'b'])\np.add_argument('--size', type=int)"))
    assert found["kind"].problem("c")
    assert not found["kind"].problem("a")
    assert not found["size"].problem("anything")


@pytest.mark.parametrize(("path", "facts"), [VLLM_DATA, SGLANG_DATA], ids=["vllm", "sglang"])
def test_data_file_is_what_its_table_renders_and_names_a_wheel_for_each_release(
    path: Path, facts: tuple[str, ...]
) -> None:
    table = load_table(path, facts)
    assert table.render() == path.read_text()
    assert table.containers.keys() <= table.sources.keys()


def test_readers_name_only_python_members() -> None:
    names = ["vllm/config/speculative.py", "vllm/models/a.py", "vllm/_C.so", "vllm/model_executor/models/b.json"]
    assert vllm.members(names) == names[:2]
