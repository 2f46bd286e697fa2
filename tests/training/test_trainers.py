# SPDX-License-Identifier: Apache-2.0
"""Jobs for external trainers: their data is the training split only, and the result is read, judged and published."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests._support.tiny import greedy, reference_model
from tests.conftest import Run
from tests.methods.draft_formats.nets import NETS, changed, contents, make_target
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.paths import recipes_dir
from trtspec.core.registry import discover
from trtspec.methods.draft_formats.convert import convert_draft
from trtspec.training.external.base import ATTRIBUTE, PACKAGE, TrainingJob

pytestmark = pytest.mark.integration

TRAINERS = discover(PACKAGE, ATTRIBUTE)
PROMPTS, TOKENS = 40, 12
FAST = ("--max-tokens", str(TOKENS))
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}<assistant>"


def worsened(source: Path, root: Path, share: float = 1.5) -> Path:
    """Copy a head and add noise to its matrices."""

    def change(config: Any, tensors: dict[str, torch.Tensor]) -> None:
        draw = torch.Generator().manual_seed(0)
        for tensor in tensors.values():
            if tensor.is_floating_point():
                tensor.add_((share * tensor.float().std() * torch.randn(tensor.shape, generator=draw)).to(tensor.dtype))

    return changed(source, root, change)


@pytest.fixture
def models(workplace: Path) -> Path:
    """The quickstart's models, with their head as `good` and a worse one as `head`, which the recipe names."""
    own = recipes_dir() / "models"
    shutil.copytree(own / "quickstart-target", workplace / "target")
    shutil.copytree(own / "quickstart-eagle3", workplace / "good")
    worsened(workplace / "good", workplace / "head")
    lines = (recipes_dir() / "prompts" / "quickstart.jsonl").read_text().splitlines()[:PROMPTS]
    (workplace / "prompts.jsonl").write_text("".join(f"{line}\n" for line in map(_without_kind, lines)))
    return workplace


def _without_kind(line: str) -> str:
    return json.dumps({key: value for key, value in json.loads(line).items() if key != "kind"})


@pytest.fixture
def recipe(models: Path) -> Path:
    path = models / "recipe.yaml"
    path.write_text(
        "schema: trtspec.recipe/1\nname: mine\ntarget: {model: ./target}\n"
        "speculation: {method: eagle3, draft_len: 4, draft: {model: ./head}}\n"
        "engine: {max_batch_size: 16, max_input_len: 256, max_seq_len: 512}\n"
    )
    return path


@pytest.fixture
def asked(recipe: Path, trtspec: Run) -> Callable[..., Any]:
    def run(*arguments: object) -> Any:
        return trtspec("train", recipe, "--prompts", "prompts.jsonl", *FAST, *arguments)

    return run


def rows_of(job: Path) -> list[dict[str, list[int]]]:
    return [json.loads(line) for line in (job / "rows.jsonl").read_text().splitlines()]


def prompts_of(job: Path) -> list[tuple[int, ...]]:
    return [
        tuple(token for token, learned in zip(row["input_ids"], row["loss_mask"], strict=True) if not learned)
        for row in rows_of(job)
    ]


def place_result(job: Path, source: Path, trainer: str) -> Path:
    """Put a draft where the trainer writes its own, in its dialect."""
    what = TRAINERS[trainer]
    place = job / what.result
    place.parent.mkdir(exist_ok=True)
    convert_draft(source, what.kinds["eagle3"].dialect, place, "target")
    return place


@pytest.mark.parametrize("trainer", TRAINERS)
def test_external_job_is_exported_and_its_better_draft_published(trainer: str, asked: Callable[..., Any]) -> None:
    job = Path("drafts") / f"mine-{trainer}"
    written = asked("--trainer", trainer, "--json").document
    assert (written["out"], written["rows"], written["left_out"]) == (str(job), len(rows_of(job)), 0)
    place_result(job, Path("good"), trainer)
    ended = asked("--result", job, "--out", "better", "--json")
    assert ended.code == 0, ended.out + ended.err
    found = ended.document
    assert found["after"]["mean_accepted_len"] > 1.1 * found["before"]["mean_accepted_len"]
    assert found["training"]["trainer"] == f"{trainer} {TRAINERS[trainer].version}"
    kept = json.loads(Path("better/trtspec_training.json").read_text())
    assert len(kept.pop("prompt_digests")) > 0
    assert kept == found
    # in the dialect of the previous draft, bit for bit
    kept = contents(Path("good"))
    assert {name: tensor for name, tensor in contents(Path("better")).items() if name in kept} == kept


def test_worse_external_draft_is_rejected(asked: Callable[..., Any], models: Path) -> None:
    job = Path("job")
    assert asked("--trainer", "specforge", "--out", job, "--set", "speculation.draft.model=./good").code == 0
    place_result(job, Path("head"), "specforge")
    ended = asked("--result", job, "--set", "speculation.draft.model=./good")
    assert ended.code == 112
    assert "trained by specforge" in ended.out
    assert "rejected: all held-out prompts gain -" in ended.out
    assert not Path("drafts").exists()


def test_job_rows_are_the_training_split_with_target_answers(asked: Callable[..., Any], models: Path) -> None:
    job = Path("job")
    assert asked("--trainer", "speculators", "--out", job).code == 0
    texts = [json.loads(line) for path in Path("cache").rglob("texts.jsonl") for line in path.read_text().splitlines()]
    sides = {side: {tuple(text["prompt"]) for text in texts if text["side"] == side} for side in ("train", "held-out")}
    assert set(prompts_of(job)) == sides["train"]
    assert sides["held-out"]
    assert not any(prompt == row[: len(prompt)] for row in prompts_of(job) for prompt in sides["held-out"])
    model = reference_model(Path("target"))
    for row in rows_of(job)[:4]:
        ids, mask = row["input_ids"], row["loss_mask"]
        prompt = len(mask) - sum(mask)
        assert mask == [0] * prompt + [1] * (len(ids) - prompt)
        assert ids[prompt:] == greedy(model, ids[:prompt], len(ids) - prompt)


def test_message_prompts_use_the_chat_template_of_the_target(asked: Callable[..., Any], models: Path) -> None:
    config = models / "target" / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TEMPLATE}))
    said = [f"INFO worker-{number} path=/v1/{number * 7}" for number in range(40)]
    lines = [json.dumps({"messages": [{"role": "user", "content": text}]}) for text in said]
    (models / "prompts.jsonl").write_text("\n".join(lines))
    assert asked("--trainer", "modelopt", "--out", "job").code == 0
    tokenizer = Tokenizer(models / "target")
    expected = {tuple(tokenizer.encode(f"<user>{text}\n<assistant>")) for text in said}
    found = prompts_of(Path("job"))
    assert found
    assert set(found) < expected
    for line, row in zip(Path("job/messages.jsonl").read_text().splitlines(), rows_of(Path("job")), strict=True):
        user, assistant = (message["content"] for message in json.loads(line)["messages"])
        assert tokenizer.encode(user + assistant, add_special_tokens=False) == row["input_ids"]
        assert len(tokenizer.encode(user, add_special_tokens=False)) == len(row["loss_mask"]) - sum(row["loss_mask"])


@pytest.fixture
def job(asked: Callable[..., Any]) -> Path:
    """A job for SpecForge with a result."""
    assert asked("--trainer", "specforge", "--out", "job").code == 0
    place_result(Path("job"), Path("good"), "specforge")
    return Path("job")


def wider(config: Any, tensors: dict[str, torch.Tensor]) -> None:
    config["hidden_size"] = 512


def ids_beyond(config: Any, tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"][-1] = config["vocab_size"]


def ids_for_offsets(config: Any, tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))


def another_vocabulary(config: Any, tensors: dict[str, torch.Tensor]) -> None:
    config["vocab_size"] = 2048
    tensors["t2d"] = torch.cat([tensors["t2d"], torch.zeros(1024, dtype=torch.bool)])


def nothing_of_the_fc(config: Any, tensors: dict[str, torch.Tensor]) -> None:
    del tensors["fc.weight"]


WRONG: dict[str, tuple[Callable[[Any, dict[str, torch.Tensor]], None], str]] = {
    "another target's width": (wider, "512"),
    "ids beyond the vocabulary": (ids_beyond, "d2t"),
    "ids in place of offsets": (ids_for_offsets, "d2t"),
    "another vocabulary": (another_vocabulary, "2048"),
    "a tensor that is missing": (nothing_of_the_fc, "fc"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_invalid_results_are_rejected_by_name(fault: str, job: Path, asked: Callable[..., Any]) -> None:
    change, named = WRONG[fault]
    exported = job / "exported"
    exported.rename(job / "right")
    changed(job / "right", exported, change)
    ended = asked("--result", job)
    assert ended.code == 1
    assert named in ended.err
    assert not Path("drafts").exists()


def test_results_of_unknown_origin_are_rejected(job: Path, asked: Callable[..., Any]) -> None:
    stray = asked("--result", "good")
    assert (stray.code, "no trtspec_job.json here or above" in stray.err) == (1, True)
    other = asked("--result", job, "--seed", "1")
    assert (other.code, "the held-out prompts changed" in other.err) == (1, True)
    shutil.rmtree(job / "exported")
    none = asked("--result", job)
    assert (none.code, "no trained draft found" in none.err) == (1, True)
    (job / "exported").symlink_to(Path("good").absolute())
    link = asked("--result", job)
    assert (link.code, "a link points out of the job's directory" in link.err) == (1, True)
    record = json.loads((job / "trtspec_job.json").read_text())
    (job / "trtspec_job.json").write_text(json.dumps({**record, "held_out": "x"}))
    edited = asked("--result", job)
    assert (edited.code, "trtspec_job.json: not written by trtspec: held_out" in edited.err) == (1, True)


def test_unsupported_trainer_options_are_rejected(asked: Callable[..., Any], models: Path) -> None:
    unknown = asked("--trainer", "specforg")
    assert (unknown.code, "did you mean 'specforge'?" in unknown.err) == (1, True)
    method = asked("--trainer", "modelopt", "--set", "speculation.method=medusa")
    assert (method.code, "supported methods: eagle3, dflash, dspark" in method.err) == (1, True)
    both = asked("--trainer", "modelopt", "--write")
    assert (both.code, "cannot be combined with --result or --write" in both.err) == (1, True)
    for whose in (("--trainer", "modelopt"), ("--result", ".")):
        ours = asked(*whose, "--lora", "4")
        assert (ours.code, "--lora and --loss cannot be combined with --trainer" in ours.err) == (1, True)
    sizes = asked("--trainer", "modelopt", "--layers", "2")
    assert (sizes.code, "the sizes of the recipe's draft cannot be changed" in sizes.err) == (1, True)
    bare = asked("--trainer", "modelopt", "--set", "speculation.draft=null")
    assert (bare.code, "external trainers start from one" in bare.err) == (1, True)
    rate = asked("--trainer", "speculators", "--learning-rate", "3")
    assert (rate.code, "speculators, learning_rate: must be at most 1, got 3.0" in rate.err) == (1, True)
    assert not Path("drafts").exists()
    Path("there").mkdir()
    place = asked("--trainer", "speculators", "--out", "there")
    assert (place.code, "already exists" in place.err) == (1, True)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_options_reach_the_trainer_configuration(trainer: str, asked: Callable[..., Any]) -> None:
    options = ("--steps", "70", "--learning-rate", "0.002", "--seed", "5")
    assert asked("--trainer", trainer, "--out", "job", *options).code == 0
    said = yaml.safe_load(Path("job/run.yaml").read_text())
    values = list(_leaves(said))
    for value in (70, 0.002, 5, str(Path("target").absolute())):
        assert value in values


def _leaves(value: Any) -> Any:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
    else:
        yield value


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target for the small nets of every kind."""
    return make_target(tmp_path_factory.mktemp("target") / "hf")


def job_of(trainer: str, kind: str, target: Path, root: Path) -> TrainingJob:
    """Return a job for a random draft of a kind, which is in `root` in the trainer's dialect."""
    what = TRAINERS[trainer].kinds[kind]
    save = next(save for (each, dialect), save in NETS.items() if each == kind and dialect != "deepspec")
    draft = convert_draft(save(root / "net"), what.dialect, root / "draft", str(target)).draft
    config = json.loads((root / "draft" / "config.json").read_text())
    return TrainingJob(
        kind=what,
        target=str(target),
        layers=8,
        captured=draft.layers_read(8),
        draft=config,
        draft_len=4,
        longest=100,
        maps=False,
        learning_rate=1e-4,
        steps=None,
        seed=0,
    )


@pytest.mark.parametrize(("trainer", "kind"), [(name, kind) for name, each in TRAINERS.items() for kind in each.kinds])
def test_every_draft_kind_has_a_trainer_configuration(trainer: str, kind: str, target: Path, tmp_path: Path) -> None:
    job = job_of(trainer, kind, target, tmp_path)
    said = list(_leaves(TRAINERS[trainer].config(job)))
    assert job.kind.name in said or trainer == "modelopt"
    assert str(target) in said
    read = subprocess.run(["sh", "-n"], input=TRAINERS[trainer].commands(job), text=True, timeout=60, check=False)
    assert read.returncode == 0
