# SPDX-License-Identifier: Apache-2.0
"""Everything that can be known of a recipe without loading a tensor: all problems at once, at their places.

Owns the rules between recipe, checkpoints and method, and asks the engine for its own. Reads configs and headers;
imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from trtspec.artifacts.prompts import load_prompts
from trtspec.checkpoint.model_config import ModelConfig
from trtspec.checkpoint.prepare import locate_source
from trtspec.checkpoint.sharding import mapping_problems
from trtspec.checkpoint.source import Source, load_source
from trtspec.checkpoint.tokenizer import check_tokenizer, check_tokenizers
from trtspec.engines.base import Backend, Case, Storage, backends, choose_backend, choose_version
from trtspec.errors import CheckpointError, TrtspecError
from trtspec.methods.base import Method, Options, find_method
from trtspec.recipe.diagnostics import Problem, position
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.schema import ModelSource, Recipe
from trtspec.recipe.validate import say_value
from trtspec.registry import did_you_mean
from trtspec.steps.model import SourceModel, SourcePart, load_model, load_part, mapping_of, padded, scheme_wanted

T = TypeVar("T")

# Smaller drafts are rarely right, larger ones rarely cheap: what published pairs use.
USUAL_SIZES = (10, 50)


@dataclass(frozen=True)
class Chosen:
    """The engine that a recipe gets, why, and which version of it."""

    name: str
    why: str
    engine: Backend
    version: str


@dataclass
class Findings:
    """What an examination found, None where it has problems of its own or is not asked for.

    What drafts is a model, `draft`, or a `part` of the target. `sources` are the checkpoints as they lie, by role; for
    an engine that converts nothing they may be all that is known of a model. `case` is there when all the rest is.
    """

    problems: list[Problem] = field(default_factory=list)
    chosen: Chosen | None = None
    method: Method | None = None
    options: Options | None = None
    sources: dict[str, Source] = field(default_factory=dict)
    target: SourceModel | None = None
    draft: SourceModel | None = None
    part: SourcePart | None = None
    case: Case | None = None

    @property
    def converts(self) -> bool:
        """Return whether the checkpoints are converted; until an engine is chosen they are taken to be."""
        return self.chosen is None or self.chosen.engine.converts

    def positions(self, config: ModelConfig) -> int:
        """Return how long texts may be on the chosen engine, which may know no sliding windows."""
        keeps_windows = self.chosen is not None and self.chosen.engine.keeps_windows
        return config.max_positions if keeps_windows else config.exact_positions

    @property
    def errors(self) -> list[Problem]:
        """Return the problems that keep the recipe from being built."""
        return [problem for problem in self.problems if problem.severity == "error"]


def examine(loaded: LoadedRecipe) -> Findings:
    """Hold a recipe against its checkpoints, its method and its engine."""
    return _Examination(loaded).run()


class _Examination:
    def __init__(self, loaded: LoadedRecipe) -> None:
        self.loaded, self.recipe = loaded, loaded.recipe
        self.found = Findings()

    def run(self) -> Findings:
        recipe, found = self.recipe, self.found
        found.method = self._attempt("speculation.method", "method", lambda: find_method(recipe.speculation.method))
        found.chosen = self._choose_engine()
        found.target = self._read_model("target", recipe.target)
        has_tokenizer = self._check_target()
        if found.method:
            self._check_method(found.method)
        if draft := recipe.speculation.draft:
            self._check_draft(draft, has_tokenizer)
        self._ask_engine()
        if recipe.plugins:
            self._check_plugins()
        if prompts := recipe.gates.prompts:
            self._attempt("gates.prompts", "prompts", lambda: load_prompts(Path(prompts)))
        found.problems.sort(key=position)
        return found

    def _error(self, path: str, code: str, message: str, hint: str | None = None) -> None:
        self.found.problems.append(self.loaded.problem("error", code, path, message, hint))

    def _warn(self, path: str, code: str, message: str, hint: str | None = None) -> None:
        self.found.problems.append(self.loaded.problem("warning", code, path, message, hint))

    def _attempt(self, path: str, code: str, action: Callable[[], T]) -> T | None:
        try:
            return action()
        except TrtspecError as error:
            self._error(path, code, f"{error.where}: {error.message}" if error.where else error.message, error.hint)
            return None

    def _choose_engine(self) -> Chosen | None:
        wanted, known = self.recipe.engine, backends()
        name, why = choose_backend(wanted.backend, self.found.method, wanted.gpu)
        version = self._attempt("engine.version", "version", lambda: choose_version(known[name], wanted.version))
        return None if version is None else Chosen(name, why, known[name], version)

    def _read_model(self, role: str, asked: ModelSource) -> SourceModel | None:
        """Read a checkpoint; what no family describes will do for an engine that converts nothing."""
        path = "target.model" if role == "target" else "speculation.draft.model"
        source = self._attempt(path, "checkpoint", lambda: load_source(locate_source(asked)))
        if source is None:
            return None
        self.found.sources[role] = source
        if self.found.converts:
            return self._attempt(path, "checkpoint", lambda: load_model(source.root, asked.dtype))
        try:
            return load_model(source.root, asked.dtype)
        except CheckpointError as error:
            self._warn(path, "not-read", f"{error.message}; its sizes and its memory are not checked")
            return None

    def _check_target(self) -> bool:
        """Check the target alone; return whether its tokenizer may be compared with a draft's."""
        found = self.found
        if "target" not in found.sources:
            return False
        root = found.sources["target"].root
        before = len(found.errors)
        self._attempt("target.model", "tokenizer", lambda: check_tokenizer(root))
        if found.target:
            self._check_storage("target", self.recipe.target, found.target)
            self._check_sizes(found.target)
        return len(found.errors) == before

    def _check_method(self, method: Method) -> None:
        speculation, name = self.recipe.speculation, self.recipe.speculation.method
        if method.drafts_with != "nothing" and speculation.draft is None:
            what = "a model" if method.drafts_with == "model" else "a part that was trained for the target"
            self._error("speculation", "no-draft", f"{name} drafts with {what}", "name one under speculation.draft")
        if method.drafts_with == "nothing" and speculation.draft is not None:
            self._error("speculation.draft", "unused-draft", f"{name} drafts with nothing of its own", "remove draft")
        if speculation.draft_len is not None and speculation.draft_len not in method.draft_lens:
            lens = method.draft_lens
            span = f"takes {lens[0]}..{lens[-1]} draft tokens" if lens else "has no draft_len: its options decide"
            self._error("speculation.draft_len", "out-of-range", f"{name} {span}")
        if self.found.chosen and self.found.chosen.name not in method.engines:
            engines = ", ".join(method.engines)
            self._error("speculation.method", "method", f"{name} runs on {engines}, not on {self.found.chosen.name}")
        self._check_options(method)

    def _check_options(self, method: Method) -> None:
        name, given, path = self.recipe.speculation.method, self.recipe.speculation.options, "speculation.options"
        try:
            options = method.options.model_validate(given)
        except ValidationError as error:
            for finding in error.errors(include_url=False):
                key = ".".join(map(str, finding["loc"]))
                if finding["type"] == "extra_forbidden":
                    known = list(method.options.model_fields)
                    message = f"{name} has no option {key!r} ({', '.join(known) or 'it has none'})"
                    self._error(f"{path}.{key}", "unknown-key", message, did_you_mean(key, known))
                else:
                    self._error(f"{path}.{key}", *say_value(finding, key))
            return
        self.found.options = options
        if options.acceptance != "exact" and self.recipe.gates.lossless:
            hint = "set gates.lossless: false if another text than the target's will do, or remove lossy"
            self._error(f"{path}.lossy", "lossy", "lossy acceptance changes the text, and gates.lossless holds", hint)
        for misfit in method.misfits(options, self.found.target.config) if self.found.target else ():
            self._error(f"{path}.{misfit.code}", "out-of-range", misfit.message, misfit.hint)

    def _check_draft(self, draft: ModelSource, has_tokenizer: bool) -> None:
        found = self.found
        if found.method and found.method.drafts_with == "part":
            self._check_part(draft)
        elif found.method is None or found.method.drafts_with == "model":
            found.draft = self._read_model("draft", draft)
            if found.draft:
                self._check_storage("speculation.draft", draft, found.draft)
            if found.target and found.draft:
                self._check_pair(found.target, found.draft, has_tokenizer)

    def _check_part(self, draft: ModelSource) -> None:
        """Check a drafting part against its target, which it is stored with."""
        recipe, found = self.recipe, self.found
        for key in sorted(draft.model_fields_set & {"dtype", "quantization", "parallel"}):
            message = f"{recipe.speculation.method} is stored with the target, in its dtype and divided as it is"
            self._error(f"speculation.draft.{key}", "not-supported", message, f"remove {key}")
        target, options, path = found.target, found.options, "speculation.draft.model"
        if target is None or options is None:
            return
        method, given, draft_len = recipe.speculation.method, recipe.speculation.options, recipe.speculation.draft_len
        found.part = self._attempt(
            path, "checkpoint", lambda: load_part(locate_source(draft), method, given, target, draft_len)
        )
        if found.part is None:
            return
        found.sources["draft"] = found.part.source
        root = found.part.source.root
        if all((one / "tokenizer.json").is_file() for one in (root, target.source.root)):
            self._attempt(path, "tokenizer", lambda: check_tokenizers(target.source.root, root))
        for misfit in found.part.part.misfits:
            say = self._error if misfit.severity == "error" else self._warn
            say(path, misfit.code, misfit.message, misfit.hint)
        for message in found.part.mapping_problems(mapping_of(recipe.target)):
            self._error("target.parallel", "parallel", message)

    def _check_sizes(self, target: SourceModel) -> None:
        engine = self.recipe.engine
        limit = self.found.positions(target.config)
        what = "positions" if limit == target.config.max_positions else "tokens of sliding window"
        for key, value in (("max_seq_len", engine.max_seq_len), ("max_input_len", engine.max_input_len)):
            if value and key in engine.model_fields_set and value > limit:
                message = f"{key} {value} is more than the target's {limit} {what}"
                self._error(f"engine.{key}", "out-of-range", message, f"at most {limit}")

    def _check_pair(self, target: SourceModel, draft: SourceModel, has_tokenizer: bool) -> None:
        path = "speculation.draft.model"
        ours, theirs = target.config, draft.config
        if theirs.vocab_size > ours.vocab_size or (theirs.vocab_size < ours.vocab_size and not self.found.converts):
            message = f"the draft has {theirs.vocab_size} vocabulary entries, the target {ours.vocab_size}"
            self._error(path, "vocabulary", message, "a draft has to share the target's vocabulary")
        elif has_tokenizer:
            self._attempt(path, "tokenizer", lambda: check_tokenizers(target.source.root, draft.source.root))
        if theirs.vocab_size < ours.vocab_size:  # published with fewer unused rows: converted with as many
            self.found.draft = padded(draft, ours.vocab_size)
        limit = self.found.positions(theirs)
        if limit < min(self.recipe.engine.max_seq_len, self.found.positions(ours)):
            message = f"the draft has {limit} positions, fewer than engine.max_seq_len"
            self._error(path, "positions", message, f"set engine.max_seq_len to at most {limit}")
        ratio = ours.num_parameters / theirs.num_parameters
        if not USUAL_SIZES[0] <= ratio <= USUAL_SIZES[1]:
            sizes = f"{ours.num_parameters / 1e6:,.1f} M and {theirs.num_parameters / 1e6:,.1f} M parameters"
            message = f"the target is {ratio:.1f} times the draft ({sizes}); pairs that pay are 10 to 50 times apart"
            self._warn(path, "size-ratio", message)

    def _check_storage(self, path: str, model: ModelSource, loaded: SourceModel) -> None:
        """Check how a model is divided, and where it is converted how it is quantized."""
        mapping, wanted = mapping_of(model), scheme_wanted(model)
        for message in mapping_problems(loaded.config, mapping):
            self._error(f"{path}.parallel", "parallel", message)
        if not self.found.converts:
            return
        for key, message in loaded.problems(wanted, mapping):
            self._error(f"{path}.quantization.{key}", "quantization", message)
        if not loaded.needs_calibration(wanted):
            return
        if prompts := model.quantization.calibration.prompts:
            where = f"{path}.quantization.calibration.prompts"
            self._attempt(where, "prompts", lambda: load_prompts(Path(prompts)))
        else:
            message = "no calibration prompts are named; activations are measured on the ones that trtspec brings"
            hint = "name some of your own kind of text: calibration: {prompts: FILE.jsonl}"
            self._warn(f"{path}.quantization", "default-prompts", message, hint)

    def _check_plugins(self) -> None:
        from trtspec.steps.plugin import library_of  # steps that build, which few recipes need to be checked with

        recipe = self.recipe
        self._attempt("plugins", "plugin", lambda: library_of(recipe.plugins, recipe.engine.gpu or ""))

    def _ask_engine(self) -> None:
        """Ask the engine what it has against all of this, once all of it is known."""
        self.found.case = case = self._case()
        if case is None or self.found.chosen is None:
            return
        for objection in self.found.chosen.engine.objections(case):
            say = self._error if objection.severity == "error" else self._warn
            say(objection.path, objection.code, objection.message, objection.hint)

    def _case(self) -> Case | None:
        found, recipe = self.found, self.recipe
        method, options, target = found.method, found.options, found.target
        wants_draft = recipe.speculation.draft is not None and "draft" not in found.sources
        if method is None or options is None or found.chosen is None or "target" not in found.sources or wants_draft:
            return None
        if self.found.converts and target is None:
            return None
        draft_len = recipe.speculation.draft_len
        return Case(
            recipe=_fitted(recipe, found.positions(target.config) if target else recipe.engine.max_seq_len),
            version=found.chosen.version,
            method=method,
            options=options,
            extent=method.extent(options, method.default_draft_len if draft_len is None else draft_len),
            target=target.config if target else None,
            target_storage=_storage(recipe.target, target),
            draft=found.draft.config if found.draft else None,
            draft_storage=_storage(recipe.speculation.draft, found.draft),
            part=found.part.part if found.part else None,
            sources={role: source.facts for role, source in found.sources.items()},
        )


def _fitted(recipe: Recipe, most: int) -> Recipe:
    """Lower the default length to what the target has positions for; what the recipe says itself was checked."""
    engine = recipe.engine
    length = min(engine.max_seq_len, most)
    return recipe.model_copy(update={"engine": engine.model_copy(update={"max_seq_len": length})})


def _storage(asked: ModelSource | None, model: SourceModel | None) -> Storage:
    """Return how a model will be stored: as it is already, else as the recipe wants."""
    if asked is None:
        return Storage()
    scheme = scheme_wanted(asked)
    if model and model.existing:
        try:
            scheme = model.scheme(scheme)
        except CheckpointError:  # it is told as a problem of its own
            return Storage()
    return Storage(scheme.weights, scheme.kv_cache)
