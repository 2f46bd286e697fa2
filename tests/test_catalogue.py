# SPDX-License-Identifier: Apache-2.0
"""The catalogue: each recipe for published models fits its checkpoints, its engine and its GPUs.

Checkpoints are headers of the published shapes (tests/_support/shapes), so plans are those of the real ones.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests._support.shapes import Shape, make_checkpoints, shapes
from tests.conftest import Run
from tests.deployment import accepted
from tests.deployment.manifests import IMAGE
from trtspec.backends.serving import ServingHooks
from trtspec.checkpoints import source as sources
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.core.errors import DeployError
from trtspec.core.paths import recipes_dir
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.target import find_target
from trtspec.deployment.unbuilt import emit_repository, plan_workload
from trtspec.planning.pipeline import plan_build
from trtspec.recipe.load import load_recipe
from trtspec.recipe.schema import is_directory

NAMES = [path.stem for path in sorted(recipes_dir().glob("*.yaml")) if not path.stem.startswith("quickstart")]
PlanOf = Callable[[str], dict[str, Any]]
DECODERS = [shape for shape in shapes() if shape.layout == "decoder"]

# What `check` warns of, only where it is true and a reader of the recipe has to know it:
# greedy, greedy-only: the server refuses sampled requests; another method or release serves them.
# positions: the published head has 2,048 or 4,096 positions, the texts of the recipe 8,192 tokens.
WARNINGS = {
    "vicuna-7b-medusa": ["greedy"],
    "llama-2-7b-eagle": ["greedy"],
    "codellama-7b-lookahead": ["greedy"],
    "llama-3.1-8b-eagle3": ["greedy-only", "positions"],
    "llama-3.3-70b-eagle3": ["greedy-only", "positions"],
    "qwen3-8b-eagle3": ["greedy-only"],
    "deepseek-v3.1-mtp": ["greedy-only"],
    "llama-3.1-8b-eagle3-edge": ["positions"],
}
# Facts about correct recipes: a package that vLLM's image lacks, the published head's own rotary embedding, and sampled
# requests that Edge-LLM serves without drafts.
NOTES = {
    **{path.stem: ["needs-package"] for path in recipes_dir().glob("*-suffix-vllm.yaml")},
    "llama-3.1-8b-eagle3": ["rope"],
    "llama-3.3-70b-eagle3": ["rope"],
    "llama-3.1-8b-eagle3-edge": ["greedy-only", "rope"],
    "qwen3-8b-eagle3-edge": ["greedy-only"],
    "qwen3-8b-dflash-edge": ["greedy-only"],
}

# Parameters as the hub counts them from the headers of the real files.
PARAMETERS = {
    "llama-3.1-8b-instruct": 8_030_261_248,
    "llama-3.2-1b-instruct": 1_235_814_400,
    "llama-3.2-3b-instruct": 3_212_749_824,
    "llama-3.3-70b-instruct": 70_553_706_496,
    "llama-3.1-405b-instruct": 405_853_388_800,
    "llama-3-8b-instruct": 8_030_261_248,
    "llama-2-7b-chat": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "codellama-7b-instruct": 6_738_546_688,
    "mistral-7b-instruct-v0.3": 7_248_023_552,
    "mixtral-8x7b-instruct-v0.1": 46_702_792_704,
    "qwen2.5-72b-instruct": 72_706_203_648,
    "qwen2.5-0.5b-instruct": 494_032_768,
    "qwen2.5-1.5b-instruct": 1_543_714_304,
    "qwen3-8b": 8_190_735_360,
    "qwen3-4b": 4_022_468_096,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3.5-27b": 27_781_427_952,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v3.1": 684_531_386_000,
    "mistral-small-24b-instruct-2501": 23_572_403_200,
    "gemma-3-27b-it": 27_432_406_640,
    "llama-4-scout-17b-16e-instruct": 108_641_793_536,
    "phi-4": 14_659_507_200,
    "dflash-qwen3-8b": 1_048_626_432,
}
# Where nobody publishes a number: pickles, nets of a configuration, the text model of a larger one.
UNCOUNTED = {shape.name for shape in shapes() if shape.revision is None}
UNCOUNTED |= {"gemma-4-31b-it", "gemma-4-31b-it-assistant", "speculator-qwen3-8b"}

# What engines are built with, word for word: a pair, a pair in FP8 on two GPUs, and each way to draft inside of one.
COMMANDS = {
    "llama-3.1-8b-draft-1b": {
        "build-target": """
            trtllm-build --checkpoint_dir checkpoints/target --output_dir engines/target --max_batch_size 8
            --max_input_len 4096 --max_seq_len 8192 --max_num_tokens 8192 --opt_num_tokens 40 --max_beam_width 1
            --kv_cache_type paged --tokens_per_block 32 --remove_input_padding enable --context_fmha enable
            --use_paged_context_fmha enable --use_fp8_context_fmha disable --gpt_attention_plugin auto
            --gemm_plugin auto --logits_dtype float32 --workers 1 --speculative_decoding_mode draft_tokens_external
            --max_draft_len 4 --gather_generation_logits
        """,
        "build-draft": """
            trtllm-build --checkpoint_dir checkpoints/draft --output_dir engines/draft --max_batch_size 8
            --max_input_len 4096 --max_seq_len 8192 --max_num_tokens 8192 --opt_num_tokens 8 --max_beam_width 1
            --kv_cache_type paged --tokens_per_block 32 --remove_input_padding enable --context_fmha enable
            --use_paged_context_fmha enable --use_fp8_context_fmha disable --gpt_attention_plugin auto
            --gemm_plugin auto --logits_dtype float32 --workers 1 --gather_generation_logits
        """,
    },
    "llama-3.3-70b-fp8-tp2": {
        "build-target": """
            trtllm-build --checkpoint_dir checkpoints/target --output_dir engines/target --max_batch_size 8
            --max_input_len 4096 --max_seq_len 8192 --max_num_tokens 8192 --opt_num_tokens 88 --max_beam_width 1
            --kv_cache_type paged --tokens_per_block 32 --remove_input_padding enable --context_fmha enable
            --use_paged_context_fmha enable --use_fp8_context_fmha enable --gpt_attention_plugin auto
            --gemm_plugin disable --logits_dtype float32 --workers 2
            --speculative_decoding_mode draft_tokens_external --max_draft_len 10 --gather_generation_logits
        """,
        "build-draft": """
            trtllm-build --checkpoint_dir checkpoints/draft --output_dir engines/draft --max_batch_size 8
            --max_input_len 4096 --max_seq_len 8192 --max_num_tokens 8192 --opt_num_tokens 8 --max_beam_width 1
            --kv_cache_type paged --tokens_per_block 32 --remove_input_padding enable --context_fmha enable
            --use_paged_context_fmha enable --use_fp8_context_fmha enable --gpt_attention_plugin auto
            --gemm_plugin disable --logits_dtype float32 --workers 1 --gather_generation_logits
        """,
    },
    "vicuna-7b-medusa": {
        "build-target": """
            trtllm-build --checkpoint_dir checkpoints/target --output_dir engines/target --max_batch_size 4
            --max_input_len 1024 --max_seq_len 1536 --max_num_tokens 6144 --opt_num_tokens 256 --max_beam_width 1
            --kv_cache_type paged --tokens_per_block 32 --remove_input_padding enable --context_fmha enable
            --use_paged_context_fmha enable --use_fp8_context_fmha disable --gpt_attention_plugin auto
            --gemm_plugin auto --logits_dtype float32 --workers 1 --speculative_decoding_mode medusa
            --max_draft_len 63
        """,
    },
    "llama-2-7b-eagle": {
        "build-target": """
            trtllm-build --checkpoint_dir checkpoints/target --output_dir engines/target --max_batch_size 4
            --max_input_len 2048 --max_seq_len 3072 --max_num_tokens 8192 --opt_num_tokens 104 --max_beam_width 1
            --kv_cache_type paged --tokens_per_block 32 --remove_input_padding enable --context_fmha enable
            --use_paged_context_fmha enable --use_fp8_context_fmha disable --gpt_attention_plugin auto
            --gemm_plugin auto --logits_dtype float32 --workers 1 --speculative_decoding_mode eagle
            --max_draft_len 25
        """,
    },
    "codellama-7b-lookahead": {
        "build-target": """
            trtllm-build --checkpoint_dir checkpoints/target --output_dir engines/target --max_batch_size 4
            --max_input_len 4096 --max_seq_len 8192 --max_num_tokens 8192 --opt_num_tokens 336 --max_beam_width 1
            --kv_cache_type paged --tokens_per_block 32 --remove_input_padding enable --context_fmha enable
            --use_paged_context_fmha enable --use_fp8_context_fmha disable --gpt_attention_plugin auto
            --gemm_plugin auto --logits_dtype float32 --workers 1 --speculative_decoding_mode lookahead_decoding
            --max_draft_len 83
        """,
    },
    "mixtral-8x7b-ngram": {
        "build-target": """
            trtllm-build --checkpoint_dir checkpoints/target --output_dir engines/target --max_batch_size 8
            --max_input_len 6144 --max_seq_len 8192 --max_num_tokens 8192 --opt_num_tokens 40 --max_beam_width 1
            --kv_cache_type paged --tokens_per_block 32 --remove_input_padding enable --context_fmha enable
            --use_paged_context_fmha enable --use_fp8_context_fmha disable --gpt_attention_plugin auto
            --gemm_plugin auto --logits_dtype float32 --workers 2 --speculative_decoding_mode draft_tokens_external
            --max_draft_len 4
        """,
    },
}


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a copy of the recipes beside the checkpoints that they look for; `hub` beside it is the hub cache."""
    root = tmp_path_factory.mktemp("catalogue")
    recipes = root / "recipes"
    recipes.mkdir()
    for path in recipes_dir().glob("*.yaml"):
        shutil.copy(path, recipes)
    for folder in ("prompts", "models"):
        (recipes / folder).symlink_to(recipes_dir() / folder)
    make_checkpoints(recipes, root / "hub")
    yield recipes
    shutil.rmtree(root)  # sparse, but what counts the sizes of files would count terabytes


@pytest.fixture(scope="module")
def headers() -> Callable[[Path], dict[str, TensorInfo]]:
    """`read_header` for files that do not change: recipes have models in common, and each test reads them again."""
    return cache(sources.read_header)


@pytest.fixture
def place(
    catalogue: Path, workplace: Path, headers: Callable[[Path], dict[str, TensorInfo]], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Return the directory of the recipes, with their hub cache, and a cache of ours that knows the files' digests."""
    monkeypatch.setattr(sources, "read_header", lambda path: dict(headers(path)))
    monkeypatch.setenv("HF_HUB_CACHE", str(catalogue.parent / "hub"))
    monkeypatch.setenv("TRTSPEC_CACHE", str(catalogue.parent / "cache"))
    return catalogue


@pytest.fixture(scope="module")
def plans() -> dict[str, dict[str, Any]]:
    """The plans that were made, by the recipe's name: what some tests ask of the same plan is asked of one."""
    return {}


@pytest.fixture
def plan_of(place: Path, trtspec: Run, plans: dict[str, dict[str, Any]]) -> PlanOf:
    """A function that returns the plan of a recipe."""

    def plan(name: str) -> dict[str, Any]:
        if name not in plans:
            planned = trtspec("plan", place / f"{name}.yaml", "--json")
            assert planned.code == 0, planned.err
            plans[name] = planned.document
        return plans[name]

    return plan


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_recipe_passes_the_check(name: str, place: Path, trtspec: Run) -> None:
    checked = trtspec("check", place / f"{name}.yaml", "--json")
    problems = checked.document["problems"]
    assert (checked.code, checked.document["ok"]) == (0, True), problems
    # the torch engine's memory is that of the machine that checks, which may have less
    found = [each for each in problems if not each["message"].startswith("this machine")]
    for severity, expected in (("warning", WARNINGS), ("note", NOTES)):
        assert sorted(each["code"] for each in found if each["severity"] == severity) == expected.get(name, [])


@pytest.mark.parametrize("name", [name for name, codes in WARNINGS.items() if {"greedy", "greedy-only"} & {*codes}])
def test_header_of_a_recipe_for_greedy_requests_only_says_so(name: str) -> None:
    assert re.search("Greedy\\s+(#\\s+)?requests\\s+only", (recipes_dir() / f"{name}.yaml").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_planned_for_its_engine_and_fits_its_gpus(name: str, place: Path, plan_of: PlanOf) -> None:
    recipe = load_recipe(place / f"{name}.yaml").recipe
    plan = plan_of(name)
    assert plan["name"] == name
    assert plan["backend"] == {"name": recipe.engine.backend, "why": "the recipe sets it"}
    gpus = plan["memory"]["gpus"]
    if recipe.engine.backend == "embedded":
        assert [gpu["id"] for gpu in gpus] == ["cpu"]
        return
    assert recipe.engine.gpu
    assert [gpu["id"] for gpu in gpus] == [str(number) for number in range(recipe.target.parallel.ranks)]
    assert all(0 < gpu["weights_bytes"] < gpu["total_bytes"] <= gpu["limit_bytes"] for gpu in gpus), gpus


RENDERED = [path.stem for path in sorted(recipes_dir().glob("*.yaml"))]
WAYS = {
    "docker": {"image": IMAGE},
    "kubernetes": {"image": IMAGE, "artifact": "pvc:models"},
    "kserve": {"image": IMAGE, "artifact": "pvc:models", "form": "kserve"},
    "dynamo": {"image": IMAGE, "artifact": "pvc:models", "form": "dynamo"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RENDERED)
def test_rendered_files_of_a_recipe_are_valid_and_sized_to_its_plan(name: str, place: Path, tmp_path: Path) -> None:
    build = plan_build(load_recipe(place / f"{name}.yaml"))
    workload = plan_workload(build, DeployOptions())
    planned = build.memory()
    serves_alone = workload.serving.alone is not ServingHooks().alone
    repository = emit_repository(build, tmp_path / "repository") if serves_alone else tmp_path
    refused = []
    for way, settings in WAYS.items():
        render = find_target(way if way == "docker" else "kubernetes").render
        assert render
        try:
            files = render(replace(workload, options=DeployOptions(settings=settings)), repository)
        except DeployError:
            refused.append(way)
            continue
        assert accepted.problems({path: text for path, text in files.items() if path != "compose.yaml"}) == []
        assert not re.search(rf"{re.escape(str(place))}|{tmp_path}", "".join(files.values()))
    assert refused == ([] if serves_alone else ["kserve", "dynamo"])
    assert len(workload.gpu_ids) == len([each for each in planned if each.id != "cpu"])
    on_cpu = sum(each.total_bytes for each in planned if each.id == "cpu")
    assert workload.memory_bytes > max(on_cpu, workload.weight_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_recipe_header_states_expectations_and_memory(name: str, place: Path, plan_of: PlanOf) -> None:
    head = re.match(r"(?:#.*\n)+", (place / f"{name}.yaml").read_text())
    assert head
    assert "# Expect: " in head[0]
    told = re.search(r"^# Memory: (?:on a CPU )?([\d.]+) GiB(?: of ([\d.]+))?", head[0], re.MULTILINE)
    assert told
    gpus = plan_of(name)["memory"]["gpus"]
    fullest = max(gpus, key=lambda gpu: gpu["total_bytes"] / gpu["limit_bytes"])
    assert told[1] == f"{fullest['total_bytes'] / 2**30:.1f}"
    assert told[2] in (None, f"{fullest['limit_bytes'] / 2**30:.1f}")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_recipe_engines_are_built_with_the_expected_commands(name: str, plan_of: PlanOf) -> None:
    steps = plan_of(name)["steps"]
    commands = {step["name"]: step["command"] for step in steps if step["command"]}
    assert commands == {step: words.split() for step, words in COMMANDS[name].items()}


def test_every_checkpoint_has_a_shape_and_every_shape_a_recipe(catalogue: Path) -> None:
    wanted = set()
    for name in NAMES:
        recipe = load_recipe(catalogue / f"{name}.yaml").recipe
        for source in (recipe.target, recipe.speculation.draft):
            if source:
                local = is_directory(source.model)
                wanted.add((str(Path(source.model).relative_to(catalogue)) if local else source.model, source.revision))
    assert {(shape.model.removeprefix("./"), shape.revision) for shape in shapes()} == wanted


def test_recipes_command_lists_every_recipe_by_its_file_name(trtspec: Run, workplace: Path) -> None:
    paths = sorted(recipes_dir().glob("*.yaml"))
    recipes = [load_recipe(path).recipe for path in paths]
    assert [recipe.name for recipe in recipes] == [path.stem for path in paths]
    assert trtspec("recipes", "--json").document["recipes"] == [
        {
            "name": recipe.name,
            "path": str(path),
            "target": recipe.target.model,
            "method": recipe.speculation.method,
        }
        for recipe, path in zip(recipes, paths, strict=True)
    ]


@pytest.mark.parametrize("name", PARAMETERS)
def test_checkpoint_parameter_counts_match_the_published_ones(name: str) -> None:
    """Of MXFP4 a byte counts twice, and scales do not, as the hub has it."""
    shape = next(shape for shape in shapes() if shape.name == name)
    counts = {"blocks": 2, "scales": 0}
    counted = sum(counts.get(tensor.name.rpartition("_")[2], 1) * prod(tensor.shape) for tensor in shape.tensors())
    assert counted == PARAMETERS[name]


def test_every_checkpoint_has_a_published_count_or_is_excluded() -> None:
    assert {shape.name for shape in shapes()} == PARAMETERS.keys() | UNCOUNTED


@pytest.mark.slow
@pytest.mark.parametrize("shape", DECODERS, ids=lambda shape: shape.name)
def test_decoder_tensors_match_transformers(shape: Shape) -> None:
    """Two layers of each: names repeat. transformers 5 stacks Mixtral's experts, which published files do not."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    small = shape.config | {"num_hidden_layers": 2}
    if "num_local_experts" in small:
        pytest.skip("transformers has other names for experts than published files")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(small["model_type"], **without_type(small)))
    theirs = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if small["tie_word_embeddings"]:
        del theirs["lm_head.weight"]
    ours = Shape(shape.name, shape.model, shape.revision, shape.layout, None, small, {}).tensors()
    assert {tensor.name: tensor.shape for tensor in ours} == theirs


def without_type(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "model_type"}


@pytest.mark.slow
def test_readme_shell_function_converts_a_pickle_to_safetensors(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    block = re.search(r"```sh\n(to_safetensors.*?)```", (recipes_dir() / "README.md").read_text(), re.DOTALL)
    assert block
    tensors = {"0.0.linear.weight": torch.arange(6.0).reshape(2, 3).t(), "0.0.linear.bias": torch.ones(2)}
    torch.save(tensors, tmp_path / "heads.pt")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = f"{block[1]}\nto_safetensors {tmp_path}/heads.pt"
    subprocess.run(["bash", "-euc", command], env={**os.environ, "PATH": path}, check=True, timeout=300)
    made = load_file(tmp_path / "heads.safetensors")
    assert made.keys() == tensors.keys()
    assert all(torch.equal(made[name], tensors[name]) for name in tensors)


def test_shapes_of_speculators_have_their_section() -> None:
    """vLLM rejects a config.json of speculators without speculators_config (Should have a `model_type` key)."""
    configs = [shape.config for shape in shapes() if "speculators_model_type" in shape.config]
    assert configs
    for config in configs:
        section = config["speculators_config"]
        assert section["verifier"]["name_or_path"]
        assert section["proposal_methods"][0]["speculative_tokens"] > 0
