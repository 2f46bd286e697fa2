# SPDX-License-Identifier: Apache-2.0
"""Loading recipes: files, extends, --set, paths, and error messages."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trtspec.core.diagnostics import Diagnostic, RecipeError
from trtspec.recipe.load import load_matrix, load_recipe
from trtspec.recipe.validate import recipe_keys

Write = Callable[..., Path]
Fail = Callable[..., RecipeError]

PIN = "0123456789abcdef" * 4
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ANY_FILE = settings(max_examples=60, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])

BAD_LINES = [
    (
        "speculation: {draft_len: 99}",
        "r.yaml:4:26  speculation.draft_len\n  4 │ speculation: {draft_len: 99}\n"
        "  draft_len must be at most 64, got 99",
    ),
    (
        "engine:\n  max_batchsize: 8",
        "r.yaml:5:3  engine.max_batchsize\n  5 │   max_batchsize: 8\n"
        "  unknown key 'max_batchsize'\n  hint: did you mean 'max_batch_size'?",
    ),
    (
        "draft_len: 4",
        "r.yaml:4:1  draft_len\n  4 │ draft_len: 4\n"
        "  unknown key 'draft_len'\n  hint: did you mean 'speculation.draft_len'?",
    ),
    (
        "gates: {bananas: 1}",
        "r.yaml:4:9  gates.bananas\n  4 │ gates: {bananas: 1}\n"
        "  unknown key 'bananas'\n  hint: known keys here: lossless, min_acceptance, min_speedup, quantized_parity,"
        " prompts",
    ),
    (
        "engine: {backend: tensorrt-llm}",
        "r.yaml:4:19  engine.backend\n  4 │ engine: {backend: tensorrt-llm}\n"
        "  'tensorrt-llm' is not an identifier: lower-case letters, digits and '_', a letter first\n"
        "  hint: did you mean 'tensorrt_llm'?",
    ),
    (
        'engine: {max_batch_size: "8"}',
        'r.yaml:4:26  engine.max_batch_size\n  4 │ engine: {max_batch_size: "8"}\n'
        "  expected an integer, got the string '8'\n  hint: remove the quotes: 8",
    ),
    (
        "serving: {streaming: no}",
        "r.yaml:4:22  serving.streaming\n  4 │ serving: {streaming: no}\n"
        "  expected true or false, got the string 'no'\n  hint: write false",
    ),
    (
        "plugins: [010]",
        'r.yaml:4:11  plugins.0\n  4 │ plugins: [010]\n  expected a string, got the number 10\n  hint: quote it: "010"',
    ),
    ("serving: 3", "r.yaml:4:10  serving\n  4 │ serving: 3\n  expected a mapping, got the number 3"),
    ("engine:", "r.yaml:4:8  engine\n  4 │ engine:\n  expected a mapping, got nothing"),
    ("plugins: {a: 1}", "r.yaml:4:10  plugins\n  4 │ plugins: {a: 1}\n  expected a list, got a mapping"),
    (
        "gates: {lossless: [1]}",
        "r.yaml:4:19  gates.lossless\n  4 │ gates: {lossless: [1]}\n  expected true or false, got a list",
    ),
    (
        "speculation:\n  draft: {model: ./d}",
        "r.yaml:5:10  speculation.draft\n  5 │   draft: {model: ./d}\n  method none does not use a draft\n"
        "  hint: set speculation.method (draft_target drafts with a model), or remove draft",
    ),
    (
        "speculation:\n  method: draft_target\n  draft:\n    dtype: auto",
        "r.yaml:6:3  speculation.draft.model\n  6 │   draft:\n  model is required\n"
        "  hint: A directory (relative to the recipe), or a hub id such as meta-llama/Llama-3.1-8B-Instruct",
    ),
    (
        "speculation: {method: draft-target}",
        "r.yaml:4:23  speculation.method\n  4 │ speculation: {method: draft-target}\n"
        "  'draft-target' is not an identifier: lower-case letters, digits and '_', a letter first\n"
        "  hint: did you mean 'draft_target'?",
    ),
    (
        "engine: {max_input_len: 3000, max_seq_len: 2999}",
        "r.yaml:4:44  engine.max_seq_len\n  4 │ engine: {max_input_len: 3000, max_seq_len: 2999}\n"
        "  max_seq_len 2999 is less than max_input_len 3000"
        "\n  hint: a sequence includes the prompt and the response",
    ),
    (
        "engine: {max_input_len: 3000}",
        "r.yaml:4:1  engine.max_seq_len\n  4 │ engine: {max_input_len: 3000}\n"
        "  max_seq_len 2048 is less than max_input_len 3000"
        "\n  hint: a sequence includes the prompt and the response",
    ),
    (
        "engine: {gpu: -h200}",
        "r.yaml:4:15  engine.gpu\n  4 │ engine: {gpu: -h200}\n"
        "  '-h200' is not a GPU's name: letters, digits, '.', '_' and '-', a letter or digit first",
    ),
    (
        "engine: {extra: {--rm: 1}}",
        "r.yaml:4:18  engine.extra.--rm\n  4 │ engine: {extra: {--rm: 1}}\n"
        "  '--rm' is not an identifier: lower-case letters, digits and '_', a letter first\n  hint: remove it",
    ),
    (
        "engine: {extra: {a: --rm}}",
        "r.yaml:4:21  engine.extra.a\n  4 │ engine: {extra: {a: --rm}}\n"
        "  trtllm-build would read '--rm' as another option",
    ),
    (
        "engine: {extra: {a: [1]}}",
        "r.yaml:4:21  engine.extra.a\n  4 │ engine: {extra: {a: [1]}}\n"
        "  a trtllm-build option is a string, a number or true/false",
    ),
    (
        "serving: {placement: {target: [0, 1, 0]}}",
        "r.yaml:4:31  serving.placement.target\n  4 │ serving: {placement: {target: [0, 1, 0]}}\n  duplicate value",
    ),
    (
        "gates: {min_speedup: 0, min_acceptance: 1.5}",
        "r.yaml:4:22  gates.min_speedup\n  4 │ gates: {min_speedup: 0, min_acceptance: 1.5}\n"
        "  min_speedup must be more than 0, got 0\n\n"
        "r.yaml:4:41  gates.min_acceptance\n  4 │ gates: {min_speedup: 0, min_acceptance: 1.5}\n"
        "  min_acceptance must be at most 1, got 1.5",
    ),
]

BAD_FILES = [
    (
        "name: x\n",
        "r.yaml:1:1  schema\n  1 │ name: x\n  schema is required\n  hint: add the line schema: trtspec.recipe/1\n\n"
        "r.yaml:1:1  target\n  1 │ name: x\n  target is required\n  hint: The served model",
    ),
    (
        "schema: trtspec.recipe/2\nname: -Ab\ntarget: {model: ./t}\n",
        "r.yaml:1:9  schema\n  1 │ schema: trtspec.recipe/2\n  'trtspec.recipe/2' is not one of trtspec.recipe/1"
        "\n  hint: did you mean 'trtspec.recipe/1'?\n\n"
        "r.yaml:2:7  name\n  2 │ name: -Ab\n  '-Ab' is not a name: lower-case letters, digits, '.', '_' and '-', "
        "at most 63, a letter or digit first",
    ),
    (
        "schema: trtspec.recipe/1\nname: x\ntarget: {model: org/name}\n",
        "r.yaml:3:1  target.revision\n  3 │ target: {model: org/name}\n"
        "  'org/name' is a hub id, which needs a revision\n"
        "  hint: add the commit, revision: <40 hex digits>; or write ./org/name if a directory is meant",
    ),
    (
        f"schema: trtspec.recipe/1\nname: x\ntarget: {{model: ./t, revision: {COMMIT}}}\n",
        f"r.yaml:3:32  target.revision\n  3 │ target: {{model: ./t, revision: {COMMIT}}}\n"
        "  a directory has no revision\n  hint: remove it: the files themselves are recorded",
    ),
    (
        "schema: trtspec.recipe/1\nname: x\ntarget: {model: a/b, revision: main}\n",
        "r.yaml:3:32  target.revision\n  3 │ target: {model: a/b, revision: main}\n"
        "  'main' is not a commit: 40 hexadecimal digits",
    ),
    (
        f"schema: trtspec.recipe/1\nname: x\ntarget: {{model: ./t, sha256: {{a.bin: {PIN}}}}}\n",
        f"r.yaml:3:30  target.sha256\n  3 │ target: {{model: ./t, sha256: {{a.bin: {PIN}}}}}\n"
        "  sha256 pins pickles, but allow_pickle is false\n"
        "  hint: set allow_pickle: true to allow reading them, or remove sha256",
    ),
    (
        "schema: trtspec.recipe/1\nname: x\ntarget:\n  model: ./t\n  allow_pickle: true\n"
        f"  sha256: {{../a.bin: {PIN}}}\n",
        f"r.yaml:6:12  target.sha256.../a.bin\n  6 │   sha256: {{../a.bin: {PIN}}}\n"
        "  '../a.bin' is not the name of a .bin, .pt or .pth file\n  hint: remove it",
    ),
    (
        "schema: trtspec.recipe/1\nname: x\ntarget: {model: ./t, allow_pickle: true, sha256: {a.bin: abc}}\n",
        "r.yaml:3:58  target.sha256.a.bin\n  3 │ target: {model: ./t, allow_pickle: true, sha256: {a.bin: abc}}\n"
        "  'abc' is not a SHA-256: 64 hexadecimal digits, as sha256sum prints it",
    ),
    (
        "schema: trtspec.recipe/1\nname: x\ntarget: {model: 'https://hub/a/b'}\n",
        "r.yaml:3:17  target.model\n  3 │ target: {model: 'https://hub/a/b'}\n"
        "  'https://hub/a/b' is neither a directory nor a hub id\n"
        "  hint: a directory relative to the recipe (./models/x), or a hub id (org/name)",
    ),
    (
        "schema: trtspec.recipe/1\nname: x\ntarget: {model: ./t}\nengine: {build: {image: nvcr.io/nvidia/triton}}\n",
        "r.yaml:4:25  engine.build.image\n  4 │ engine: {build: {image: nvcr.io/nvidia/triton}}\n"
        "  'nvcr.io/nvidia/triton' is not a container image with a tag, a digest or both: NAME:TAG, "
        "NAME@sha256:<64 hexadecimal digits>",
    ),
    ("", "r.yaml\n  the file is empty\n  hint: begin with schema: trtspec.recipe/1"),
    ("# nothing\n", "r.yaml\n  the file is empty\n  hint: begin with schema: trtspec.recipe/1"),
    (
        "- a\n",
        "r.yaml:1:1\n  1 │ - a\n  a recipe is a mapping of keys to values\n  hint: begin with schema: trtspec.recipe/1",
    ),
]


@pytest.mark.parametrize(("text", "rendered"), BAD_LINES)
def test_bad_recipe_line_has_the_exact_message(fail: Fail, text: str, rendered: str) -> None:
    assert str(fail(text)) == rendered.replace("{cwd}", os.getcwd())


@pytest.mark.parametrize(("text", "rendered"), BAD_FILES)
def test_bad_recipe_file_has_the_exact_message(fail: Fail, text: str, rendered: str) -> None:
    assert str(fail(text, head="")) == rendered


def test_image_name_has_at_most_255_characters(fail: Fail) -> None:
    text = f"engine: {{build: {{image: '{'a/' * 127}bc:x'}}}}\n"
    assert "the image's name is longer than 255 characters" in str(fail(text))


def test_all_problems_of_a_file_are_reported_in_order(fail: Fail) -> None:
    error = fail(
        "plugins: [1, 2]\ntarget: {model: ./u}\nserving: {streaming: yes, x: !!int 1}\n"
        "speculation: {method: BAD, draft: {model: ./d, dtype: f}}\nengine: {max_seq_len: 0}\n"
    )
    assert [(problem.line, problem.code, problem.path) for problem in error.diagnostics] == [
        (4, "wrong-type", "plugins.0"),
        (4, "wrong-type", "plugins.1"),
        (5, "duplicate-key", "target"),
        (6, "wrong-type", "serving.streaming"),
        (6, "unknown-key", "serving.x"),
        (6, "tag", "serving.x"),
        (7, "bad-value", "speculation.method"),
        (7, "bad-value", "speculation.draft.dtype"),
        (8, "out-of-range", "engine.max_seq_len"),
    ]


def test_fatal_error_is_reported_with_earlier_problems(fail: Fail) -> None:
    error = fail("name: again\nengine: [")
    assert [problem.code for problem in error.diagnostics] == ["duplicate-key", "syntax"]


@pytest.mark.slow
def test_9000_unknown_keys_are_reported_as_100_problems_and_a_note(fail: Fail) -> None:
    start = time.process_time()
    error = fail("".join(f"key{number}: 1\n" for number in range(9_000)))
    assert time.process_time() - start < 5
    assert (len(error.diagnostics), error.diagnostics[-1].message) == (101, "more problems follow")
    assert error.diagnostics[0].message == "unknown key 'key0'"


@pytest.mark.slow
def test_19000_bad_list_items_are_rejected_within_5_seconds(fail: Fail) -> None:
    start = time.process_time()
    fail("plugins: [" + "1," * 19_000 + "]")
    assert time.process_time() - start < 5


# Reading files


def test_minimal_recipe_has_the_documented_defaults(write: Write) -> None:
    recipe = load_recipe(write("")).recipe
    assert (recipe.name, recipe.schema_) == ("tiny", "trtspec.recipe/1")
    assert (recipe.speculation.method, recipe.engine.backend, recipe.engine.max_seq_len) == ("none", "auto", 2048)
    assert (recipe.serving.streaming, recipe.serving.max_queue_delay_us, recipe.gates.lossless) == (True, 100, True)


def test_byte_order_mark_is_accepted_and_does_not_shift_columns(write: Write) -> None:
    text = "schema: trtspec.recipe/1\nname: tiny\ntarget: {model: ./t}\n"
    loaded = load_recipe(write(text.encode("utf-8-sig")))
    problem = loaded.located(Diagnostic("schema", "c", "m"))
    assert (problem.line, problem.column) == (1, 9)


def test_missing_and_irregular_files_are_reported(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("", "quickstart.yaml")
    Path("folder").mkdir()
    os.mkfifo("pipe.yaml")

    def said(name: str) -> str:
        with pytest.raises(RecipeError) as caught:
            load_recipe(Path(name))
        return str(caught.value)

    assert said("quikstart.yaml") == (
        "quikstart.yaml\n  quikstart.yaml does not exist\n  hint: did you mean 'quickstart.yaml'?"
    )
    assert said("no/where.yaml") == (
        "no/where.yaml\n  no/where.yaml does not exist\n"
        "  hint: name a readable .yaml recipe file, or a recipe that `trtspec recipes` lists"
    )
    assert said("folder") == "folder\n  folder is not a file\n  hint: name the recipe's .yaml file"
    assert said("pipe.yaml").startswith("pipe.yaml\n  pipe.yaml is not a file")
    assert said("n" * 300).partition("\n  hint: ")[0].endswith("cannot be read: File name too long")


def test_file_without_read_permission_is_reported(write: Write) -> None:
    path = write("")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("running as root: every file is readable")
    with pytest.raises(RecipeError, match=r"r\.yaml cannot be read: Permission denied"):
        load_recipe(path)


def test_2_mb_file_is_rejected_without_parsing(write: Write) -> None:
    path = write(b"# " + b"x" * (2 << 20))
    start = time.process_time()
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert str(caught.value) == "r.yaml\n  the file is larger than 1 MiB\n  hint: is it a recipe?"
    assert time.process_time() - start < 1


def test_bytes_that_are_not_utf_8_are_reported_with_their_position(fail: Fail) -> None:
    error = fail(b"schema: x\nname: \xe9t\xe9\n")
    assert str(error) == "r.yaml:2:7\n  not UTF-8: byte 0xe9\n  hint: save the file as UTF-8"
    error = fail("\ufeffn: é".encode() + b"\xff")
    assert str(error).startswith("r.yaml:1:5\n  not UTF-8: byte 0xff")


@ANY_FILE
@given(data=st.binary(max_size=200))
def test_random_bytes_raise_a_recipe_error(write: Write, data: bytes) -> None:
    with pytest.raises(RecipeError) as caught:
        load_matrix(write(data))
    assert str(caught.value).isprintable() or "\n" in str(caught.value)


SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["./x", "3"])
)
KEY = st.one_of(
    st.sampled_from(sorted({key.rsplit(".", 1)[-1] for key in recipe_keys()})),
    st.sampled_from(sorted(recipe_keys())),
    st.sampled_from(["include", "exclude", "extends", "<<", "a b"]),
)
VALUE = st.recursive(
    SCALAR, lambda below: st.lists(below, max_size=3) | st.dictionaries(KEY, below, max_size=4), max_leaves=12
)


@pytest.mark.slow
@ANY_FILE
@given(document=st.dictionaries(KEY, VALUE, max_size=5), override=st.text(max_size=12))
def test_random_document_gives_a_recipe_or_a_recipe_error(
    write: Write, document: dict[str, object], override: str
) -> None:
    text = yaml.safe_dump(document, allow_unicode=True)
    for overrides in ((), (f"engine.{override}",)):
        with contextlib.suppress(RecipeError):
            load_matrix(write(text), overrides)


# extends


def test_extends_merges_mappings_and_replaces_other_values(write: Write) -> None:
    write("engine: {max_batch_size: 4, gpu: h100}\nplugins: [a, b]\ngates: {min_speedup: 2.0}\n", "base/b.yaml")
    child = write(
        "extends: base/b.yaml\nname: child\nengine: {gpu: h200}\nplugins: [c]\ngates: {min_speedup: }\n", head=""
    )
    recipe = load_recipe(child).recipe
    assert (recipe.name, recipe.engine.max_batch_size, recipe.engine.gpu) == ("child", 4, "h200")
    assert (recipe.plugins, recipe.gates.min_speedup) == (["c"], None)


def test_problem_in_an_extended_file_is_reported_at_its_position(write: Write) -> None:
    write("engine:\n  gup: h100\n", "base/b.yaml")
    child = write("extends: base/b.yaml\nengine: {max_batch_size: 0}\n", head="")
    with pytest.raises(RecipeError) as caught:
        load_recipe(child)
    assert [(p.file, p.line, p.path) for p in caught.value.diagnostics] == [
        ("base/b.yaml", 5, "engine.gup"),
        ("r.yaml", 2, "engine.max_batch_size"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("extends: r.yaml", "extends goes in a circle: r.yaml -> r.yaml"),
        ("extends: x/b.yaml", "x/b.yaml does not exist; looked for {}/x/b.yaml"),
        ("extends: folder", "folder is not a file"),
        ("extends: [b.yaml]", "expected the path of another recipe"),
        ("extends: ''", "expected the path of another recipe"),
    ],
)
def test_bad_extends_is_rejected_with_its_position(write: Write, line: str, message: str) -> None:
    path = write(line)
    Path("folder").mkdir()
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    (problem,) = caught.value.diagnostics
    message = message.format(Path.cwd())
    assert (problem.message, problem.path, problem.line, problem.column) == (message, "extends", 4, 10)


def test_extends_with_a_null_character_is_rejected(fail: Fail) -> None:
    problems = fail('extends: "a\\0b"').diagnostics
    assert [problem.message for problem in problems] == ["control characters are not allowed in a recipe"]


def test_longer_extends_cycle_is_rejected_with_its_files(write: Write) -> None:
    write("extends: ../r.yaml", "d/b.yaml")
    with pytest.raises(RecipeError, match=r"extends goes in a circle: r.yaml -> b.yaml -> r.yaml"):
        load_recipe(write("extends: d/b.yaml"))


def test_more_than_eight_levels_of_extends_are_rejected(write: Write) -> None:
    write("", "0.yaml")
    for level in range(1, 10):
        write(f"extends: {level - 1}.yaml", f"{level}.yaml")
    assert load_recipe(Path("8.yaml")).recipe.name == "tiny"
    with pytest.raises(RecipeError, match="more than 8 recipes extend each other"):
        load_recipe(Path("9.yaml"))


# Paths


def test_paths_are_relative_to_the_file_that_contains_them(write: Write, tmp_path: Path) -> None:
    write("target: {quantization: {calibration: {prompts: c.jsonl}}}\n", "base/b.yaml", head="")
    text = (
        "extends: base/b.yaml\nspeculation: {method: draft_target, draft: {model: ../d}}\ngates: {prompts: p.jsonl}\n"
    )
    recipe = load_recipe(write(text)).recipe
    assert recipe.target.model == f"{tmp_path}/t"
    assert recipe.target.quantization.calibration.prompts == f"{tmp_path}/base/c.jsonl"
    assert recipe.speculation.draft is not None
    assert recipe.speculation.draft.model == f"{tmp_path.parent}/d"
    assert recipe.gates.prompts == f"{tmp_path}/p.jsonl"


@pytest.mark.parametrize(
    ("model", "read_as"),
    [
        ("/abs/x", "/abs/x"),
        ("./org/name", "{dir}/org/name"),
        ("~/m", "{home}/m"),
        ("a/b/c", "{dir}/a/b/c"),
        ("here/it-is", "{dir}/here/it-is"),
        ("org/name", "org/name"),
        ("gpt2", "gpt2"),
    ],
)
def test_model_is_resolved_as_a_directory_or_hub_id(write: Write, tmp_path: Path, model: str, read_as: str) -> None:
    (tmp_path / "sub/here/it-is").mkdir(parents=True)
    revision = f", revision: {COMMIT}" if read_as[0] not in "/{" else ""
    text = f"schema: trtspec.recipe/1\nname: x\ntarget: {{model: {model}{revision}}}\n"
    recipe = load_recipe(write(text, "sub/r.yaml", head="")).recipe
    assert recipe.target.model == read_as.format(dir=tmp_path / "sub", home=Path.home())


# --set


def test_set_overrides_accept_yaml_values(write: Write) -> None:
    overrides = ["engine.max_batch_size=2", "plugins=[a, b]", "speculation.options={x: 1.5}", "engine.gpu=h200"]
    recipe = load_recipe(write("engine: {max_batch_size: 64}"), overrides).recipe
    assert (recipe.engine.max_batch_size, recipe.engine.gpu) == (2, "h200")
    assert (recipe.plugins, recipe.speculation.options) == (["a", "b"], {"x": 1.5})


def test_set_paths_are_relative_to_the_current_directory_and_the_last_wins(write: Write, tmp_path: Path) -> None:
    path = write("", "sub/r.yaml")
    recipe = load_recipe(path, ["target.model=./a", "target.model=./b"]).recipe
    assert recipe.target.model == f"{tmp_path}/b"


@pytest.mark.parametrize(
    ("override", "rendered"),
    [
        ("engine.gup=h200", "  engine.gup\n  unknown key 'gup'\n  hint: did you mean 'gpu'?"),
        ("engin.gpu=h200", "  engin\n  unknown key 'engin'\n  hint: did you mean 'engine'?"),
        ("engine.max_batch_size=no", "  engine.max_batch_size\n  expected an integer, got the string 'no'"),
        ("name.x=1", "  name\n  expected a string, got a mapping"),
        ("plugins.0=x", "  plugins\n  expected a list, got a mapping"),
        (
            "engine.gpu=[",
            "\n  not valid YAML: while parsing a flow node, expected the node content, but found '<stream end>'\n"
            "  hint: check the quotes, brackets, colons and the indentation up to this place",
        ),
        (
            "speculation.options={a: 1, a: 2}",
            "  speculation.options.a\n  duplicate key\n  hint: keep one, with the keys of both",
        ),
        (
            "engine.gpu=!!str x",
            "  engine.gpu\n  tags (tag:yaml.org,2002:str) are not supported\n  hint: quote the value instead",
        ),
        *[
            (
                bad,
                f"{key}\n  expected KEY=VALUE with the dotted path of a recipe's value"
                "\n  hint: as in --set speculation.draft_len=4",
            )
            for bad, key in [
                ("engine", "  engine"),
                ("=3", ""),
                ("a..b=3", "  a..b"),
                ("extends=b.yaml", "  extends"),
                ("matrix.x=[1]", "  matrix.x"),
            ]
        ],
    ],
)
def test_bad_override_has_the_exact_message(fail: Fail, override: str, rendered: str) -> None:
    assert str(fail("", [override])) == f"--set {override}{rendered}"


@pytest.mark.slow
def test_excessively_deep_override_is_rejected(fail: Fail) -> None:
    assert fail("", ["a" + ".a" * 100_000 + "=1"]).diagnostics[0].code == "bad-override"
    assert fail("", ["engine.gpu=" + "[" * 100_000]).diagnostics[0].message == "nested deeper than 32 levels"


def test_token_is_rejected_and_never_repeated_in_messages(fail: Fail) -> None:
    token = "hf_" + "aB3" * 12
    error = fail(f"target: {{revision: {token}, tken: {token}}}\nplugins: [{token}]", [f"engine.gpu={token}"])
    assert "aB3" not in str(error) + repr(error.diagnostics)
    assert sum(problem.code == "secret" for problem in error.diagnostics) == 4


# LoadedRecipe


def test_problems_of_later_stages_are_located_in_the_file(write: Write) -> None:
    loaded = load_recipe(write("speculation:\n  method: ngram\n  options: {max_mtch: 3}\n"))

    def place(code: str, path: str) -> tuple[int | None, int | None]:
        problem = loaded.located(Diagnostic(path, code, "m", "h", "warning"))
        return problem.line, problem.column

    assert place("bad-value", "speculation.options.max_mtch") == (6, 23)
    assert place("unknown-key", "speculation.options.max_mtch") == (6, 13)
    assert place("missing-key", "speculation.draft.model") == (4, 1)
    assert place("memory", "engine.max_batch_size") == (1, 1)
    assert place("memory", "") == (1, 1)
    assert loaded.located(Diagnostic("name", "c", "m", "h", "warning")).as_dict() == {
        "severity": "warning",
        "code": "c",
        "file": "r.yaml",
        "line": 2,
        "column": 7,
        "path": "name",
        "message": "m",
        "hint": "h",
    }


def test_loaded_recipe_is_frozen(write: Write) -> None:
    loaded = load_recipe(write(""))
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded.path = Path("other")  # type: ignore[misc]
    with pytest.raises(ValueError, match="Instance is frozen"):
        loaded.recipe.name = "other"
