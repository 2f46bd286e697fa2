# SPDX-License-Identifier: Apache-2.0
"""Everything that can be known of a recipe without loading a tensor: all diagnostics at once, at their places.

Owns the rules between recipe, checkpoints and method, and asks the backend for its own. Reads configs and headers;
imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from trtspec.artifacts.prompts import load_prompts
from trtspec.backends.base import Backend, find_backend, running
from trtspec.backends.choose import AUTO, choose
from trtspec.backends.context import Choice, PlanContext
from trtspec.backends.knobs import check_knobs, check_placed
from trtspec.checkpoint.hub_preview import compare_tokenizers
from trtspec.checkpoint.model_config import ModelConfig
from trtspec.checkpoint.prepare import locate_source, preview_source
from trtspec.checkpoint.previews import named
from trtspec.checkpoint.source import NotPreparedError, Source, load_source
from trtspec.checkpoint.tokenizer import check_tokenizer
from trtspec.diagnostics import Diagnostic, position
from trtspec.errors import CheckpointError, TrtspecError, UnknownArchitecture, refusal
from trtspec.gpus import find_gpu
from trtspec.methods.base import Method, Options, find_method
from trtspec.models.outline import read_outline
from trtspec.models.source_head import SourceHead, read_head
from trtspec.models.source_model import SourceModel, mapping_of, padded, read_model, scheme_wanted
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.schema import ModelSource, Recipe
from trtspec.recipe.validate import say_value
from trtspec.registry import did_you_mean

T = TypeVar("T")

# Smaller drafts are rarely right, larger ones rarely cheap: what published pairs use.
USUAL_SIZES = (10, 50)
OPTIONS = "speculation.options"
WIDER = {"F32": "float32", "BF16": "bfloat16"}  # what has values that float16 has not


@dataclass(frozen=True)
class CheckResult:
    """What a check came to; `context` is there unless something keeps the recipe from being planned."""

    diagnostics: list[Diagnostic]
    context: PlanContext | None

    @property
    def errors(self) -> list[Diagnostic]:
        """Return the diagnostics that keep the recipe from being built."""
        return [each for each in self.diagnostics if each.severity == "error"]


def check_recipe(loaded: LoadedRecipe, *, will_prepare: bool = False) -> CheckResult:
    """Hold a recipe against its checkpoints, its method and its backend.

    With `will_prepare` a source that a build is about to bring is no problem, and what depends on it is not checked.
    """
    return _Check(loaded, will_prepare).run()


@dataclass
class _Check:
    """A check under way: what was found so far, None where it has diagnostics of its own or is not asked for."""

    loaded: LoadedRecipe
    will_prepare: bool = False
    diagnostics: list[Diagnostic] = field(default_factory=list)
    choice: Choice | None = None
    backend: Backend | None = None
    method: Method | None = None
    options: Options | None = None
    sources: dict[str, Source] = field(default_factory=dict)
    target: SourceModel | None = None
    draft: SourceModel | None = None
    head: SourceHead | None = None

    @property
    def recipe(self) -> Recipe:
        """Return the recipe."""
        return self.loaded.recipe

    @property
    def converts(self) -> bool:
        """Return whether the checkpoints are converted; until a backend is chosen they are taken to be."""
        return self.backend is None or self.backend.converts

    @property
    def maps_vocabularies(self) -> bool:
        """Return whether the backend drafts with a model whose vocabulary is another."""
        version, method = self.choice.version if self.choice else None, self.recipe.speculation.method
        return self.backend is not None and version is not None and self.backend.maps_vocabularies(version, method)

    def positions(self, config: ModelConfig) -> int:
        """Return how long texts may be on the backend, which may know no sliding windows."""
        keeps_windows = self.backend is not None and self.backend.keeps_windows
        return config.max_positions if keeps_windows else config.exact_positions

    def run(self) -> CheckResult:
        """Check everything in turn."""
        recipe = self.recipe
        self.method = self._attempt("speculation.method", "method", lambda: find_method(recipe.speculation.method))
        self._choose_backend()
        self.target = self._read_model("target", recipe.target)
        has_tokenizer = self._check_target()
        if self.method:
            self._check_method(self.method)
        if draft := recipe.speculation.draft:
            self._check_draft(draft, has_tokenizer)
        if self.backend:
            self._add(check_placed(recipe, self.backend))
        context = self._ask_backend()
        self._check_gpu()
        if recipe.plugins:
            self._check_plugins()
        if prompts := recipe.gates.prompts:
            self._attempt("gates.prompts", "prompts", lambda: load_prompts(Path(prompts)))
        self.diagnostics.sort(key=position)
        return CheckResult(self.diagnostics, context)

    def _add(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics += [replace(self.loaded.located(each), message=named(each.message)) for each in diagnostics]

    def _error(self, path: str, code: str, message: str, hint: str | None = None) -> None:
        self._add([Diagnostic(path, code, message, hint)])

    def _warn(self, path: str, code: str, message: str, hint: str | None = None) -> None:
        self._add([Diagnostic(path, code, message, hint, "warning")])

    def _attempt(self, path: str, code: str, action: Callable[[], T]) -> T | None:
        try:
            return action()
        except TrtspecError as error:
            if self.will_prepare and isinstance(error, NotPreparedError):
                return None
            message = f"{error.where}: {error.message}" if error.where else error.message
            self._error(path, code, message, error.hint)
        except OSError as error:
            if (refused := refusal(error)) is None:
                raise
            self._error(path, code, f"{refused} {error.filename}")
        return None

    def _choose_backend(self) -> None:
        engine, method = self.recipe.engine, self.recipe.speculation.method
        if engine.backend != AUTO:
            self.backend = self._attempt("engine.backend", "backend", lambda: find_backend(engine.backend))
            if self.backend is None:
                return
        self.choice = self._attempt("engine.version", "version", lambda: choose(engine, method))
        if self.choice:
            self.backend = find_backend(self.choice.name)

    def _find_source(self, asked: ModelSource) -> Source:
        """Return a source, or what is remembered or told of one that is not here; CheckpointError without any."""
        try:
            return load_source(locate_source(asked))
        except NotPreparedError:
            from trtspec.graph.store import Store  # the store, which few recipes need to be checked with
            from trtspec.paths import store_dir
            from trtspec.steps.remember import remembered_source

            return remembered_source(asked, Store(store_dir())) or preview_source(asked)

    def _read_model(self, role: str, asked: ModelSource) -> SourceModel | None:
        """Read a checkpoint; what no family describes will do for a backend that converts nothing."""
        path = "target.model" if role == "target" else "speculation.draft.model"
        source = self._attempt(path, "checkpoint", lambda: self._find_source(asked))
        if source is None:
            return None
        self.sources[role] = source
        try:
            return read_model(source, asked.dtype)
        except CheckpointError as error:
            self._report_unread(path, source, error)
            return None

    def _report_unread(self, path: str, source: Source, error: CheckpointError) -> None:
        """Report a checkpoint that no family describes, unless the backend runs it and its config says its sizes."""
        unknown = isinstance(error, UnknownArchitecture)
        if self.converts:
            hint = self._says_who_takes_it() if unknown else error.hint
            self._error(path, "checkpoint", f"{error.where}: {error.message}" if error.where else error.message, hint)
            return
        said = f"no family describes {error.architecture}" if isinstance(error, UnknownArchitecture) else error.message
        try:
            read_outline(source)
        except CheckpointError as lacking:
            self._warn(path, "not-read", f"{said}, and its config {lacking.message}: its memory is not known")

    def _says_who_takes_it(self) -> str:
        method = self.recipe.speculation.method
        known = {name: find_backend(name) for name in running(method)}
        taking = [name for name, each in known.items() if not (each.converts or each.builds_engines)]
        if not taking:
            return f"no backend that takes a model as it is runs {method}"
        return f"engine.backend: {' or '.join(taking)} takes the model as it is"

    def _check_target(self) -> bool:
        """Check the target alone; return whether its tokenizer may be compared with a draft's."""
        if "target" not in self.sources:
            return False
        source, before = self.sources["target"], self._count_errors()
        self._attempt("target.model", "tokenizer", lambda: check_tokenizer(source))
        if self.target:
            self._check_format("target", self.recipe.target, self.target)
        self._check_sizes()
        return self._count_errors() == before

    def _count_errors(self) -> int:
        return sum(each.severity == "error" for each in self.diagnostics)

    def _check_method(self, method: Method) -> None:
        speculation, name = self.recipe.speculation, self.recipe.speculation.method
        if method.drafts_with != "nothing" and speculation.draft is None:
            what = "a model" if method.drafts_with == "model" else "a head that was trained for the target"
            self._error("speculation", "no-draft", f"{name} drafts with {what}", "name one under speculation.draft")
        if method.drafts_with == "nothing" and speculation.draft is not None:
            self._error("speculation.draft", "unused-draft", f"{name} drafts with nothing of its own", "remove draft")
        if speculation.draft_len is not None and speculation.draft_len not in method.draft_lens:
            lens = method.draft_lens
            span = f"takes {lens[0]}..{lens[-1]} draft tokens" if lens else "has no draft_len: its options decide"
            self._error("speculation.draft_len", "out-of-range", f"{name} {span}")
        if self.choice and self.backend and name not in self.backend.methods():
            others = ", ".join(running(name)) or "no backend"
            self._error("speculation.method", "method", f"{name} runs on {others}, not on {self.choice.name}")
        self._check_options(method)
        if self.options and self.backend:
            self._add(check_knobs(speculation, method, self.options, self.backend))

    def _check_options(self, method: Method) -> None:
        name, given = self.recipe.speculation.method, self.recipe.speculation.options
        try:
            options = method.options.model_validate(given)
        except ValidationError as error:
            for finding in error.errors(include_url=False):
                key = ".".join(map(str, finding["loc"]))
                if finding["type"] == "extra_forbidden":
                    known = list(method.options.model_fields)
                    message = f"{name} has no option {key!r} ({', '.join(known) or 'it has none'})"
                    self._error(f"{OPTIONS}.{key}", "unknown-key", message, did_you_mean(key, known))
                else:
                    self._error(f"{OPTIONS}.{key}", *say_value(finding, key))
            return
        self.options = options
        if options.acceptance != "exact" and self.recipe.gates.lossless:
            hint = "set gates.lossless: false if another text than the target's will do, or remove lossy"
            self._error(
                f"{OPTIONS}.lossy", "lossy", "lossy acceptance changes the text, and gates.lossless holds", hint
            )
        if self.target:
            self._add(each.below(OPTIONS) for each in method.check_options(options, self.target.config))

    def _check_draft(self, draft: ModelSource, has_tokenizer: bool) -> None:
        if self.method and self.method.drafts_with == "head":
            self._check_head(draft)
        elif self.method is None or self.method.drafts_with == "model":
            self.draft = self._read_model("draft", draft)
            if self.draft:
                self._check_format("speculation.draft", draft, self.draft)
                if self.method:
                    self._add(each.below("speculation.draft") for each in self.method.check_model(self.draft.source))
            if self.target and self.draft:
                self._check_pair(self.target, self.draft, has_tokenizer)

    def _check_head(self, draft: ModelSource) -> None:
        """Check a draft head against its target, which it is stored with."""
        speculation, path = self.recipe.speculation, "speculation.draft.model"
        for key in sorted(draft.model_fields_set & {"dtype", "quantization", "parallel"}):
            message = f"{speculation.method} is stored with the target, in its dtype and divided as it is"
            self._error(f"speculation.draft.{key}", "not-supported", message, f"remove {key}")
        target = self.target
        if self.options is None or (target is None and self.converts):
            return
        source = self._attempt(path, "checkpoint", lambda: self._find_source(draft))
        if source is None:
            return
        if target is None:  # its engine tells how the head fits
            self.sources["draft"] = source
            return
        method, options, draft_len = speculation.method, speculation.options, speculation.draft_len
        self.head = self._attempt(path, "checkpoint", lambda: read_head(source, method, options, target, draft_len))
        if self.head is None:
            return
        self.sources["draft"] = source
        if all((one / "tokenizer.json").is_file() for one in (source.root, target.source.root)):
            self._attempt(path, "tokenizer", lambda: compare_tokenizers(target.source, source))
        self._add(self.head.diagnose(mapping_of(self.recipe.target)))

    def _check_sizes(self) -> None:
        engine, limit = self.recipe.engine, self._limit()
        is_window = self.target is not None and limit != self.target.config.max_positions
        what = "tokens of sliding window" if is_window else "positions"
        for key, value in (("max_seq_len", engine.max_seq_len), ("max_input_len", engine.max_input_len)):
            if limit and value and key in engine.model_fields_set and value > limit:
                message = f"{key} {value} is more than the target's {limit} {what}"
                self._error(f"engine.{key}", "out-of-range", message, f"at most {limit}")

    def _limit(self) -> int:
        """Return how long texts of the target may be, 0 where that is not known."""
        if self.target:
            return self.positions(self.target.config)
        try:
            return 0 if self.converts else read_outline(self.sources["target"]).max_positions
        except CheckpointError:
            return 0

    def _check_pair(self, target: SourceModel, draft: SourceModel, has_tokenizer: bool) -> None:
        path = "speculation.draft.model"
        ours, theirs = target.config, draft.config
        if not self.maps_vocabularies:
            self._check_vocabularies(target, draft, has_tokenizer)
        limit = self.positions(theirs)
        if limit < min(self.recipe.engine.max_seq_len, self.positions(ours)):
            message = f"the draft has {limit} positions, fewer than engine.max_seq_len"
            self._error(path, "positions", message, f"set engine.max_seq_len to at most {limit}")
        ratio = ours.num_parameters / theirs.num_parameters
        if not USUAL_SIZES[0] <= ratio <= USUAL_SIZES[1]:
            sizes = f"{ours.num_parameters / 1e6:,.1f} M and {theirs.num_parameters / 1e6:,.1f} M parameters"
            message = f"the target is {ratio:.1f} times the draft ({sizes}); pairs that pay are 10 to 50 times apart"
            self._warn(path, "size-ratio", message)

    def _check_vocabularies(self, target: SourceModel, draft: SourceModel, has_tokenizer: bool) -> None:
        """Check that the same ids mean the same texts; pad a draft of fewer rows."""
        path, ours, theirs = "speculation.draft.model", target.config, draft.config
        if theirs.vocab_size > ours.vocab_size or (theirs.vocab_size < ours.vocab_size and not self.converts):
            message = f"the draft has {theirs.vocab_size} vocabulary entries, the target {ours.vocab_size}"
            self._error(path, "vocabulary", message, "a draft has to share the target's vocabulary")
        elif has_tokenizer:
            self._attempt(path, "tokenizer", lambda: compare_tokenizers(target.source, draft.source))
        if theirs.vocab_size < ours.vocab_size:  # published with fewer unused rows: converted with as many
            self.draft = padded(draft, ours.vocab_size)

    def _check_format(self, path: str, asked: ModelSource, model: SourceModel) -> None:
        """Check what a model computes in, how it is divided, and where it is converted how it is quantized."""
        stored = WIDER.get(model.source.main_dtype)
        if stored and asked.dtype == "auto" and model.config.dtype == "float16":
            message = f"its {stored} weights become float16, whose largest value is 65,504"
            hint = "set dtype: bfloat16, which has the range of float32, or dtype: float16 if that is meant"
            self._warn(f"{path}.dtype", "dtype", message, hint)
        wanted = scheme_wanted(asked)
        self._add(each.below(path) for each in model.diagnose(wanted, mapping_of(asked), converts=self.converts))
        if not self.converts or not model.needs_calibration(wanted):
            return
        if prompts := asked.quantization.calibration.prompts:
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

    def _check_gpu(self) -> None:
        """Check the GPU's name where the backend did not, which may not have been asked."""
        gpu = self.recipe.engine.gpu
        if gpu and not any(each.path == "engine.gpu" for each in self.diagnostics):
            self._attempt("engine.gpu", "gpu", lambda: find_gpu(gpu))

    def _ask_backend(self) -> PlanContext | None:
        """Ask the backend about all of this, once all of it is known."""
        context = self._context()
        if context and self.backend:
            self._add(self.backend.check(context))
        return context

    def _context(self) -> PlanContext | None:
        wants_draft = self.recipe.speculation.draft is not None and "draft" not in self.sources
        if self.method is None or self.options is None or self.choice is None or wants_draft:
            return None
        if "target" not in self.sources or (self.converts and self.target is None):
            return None
        draft_len = self.recipe.speculation.draft_len
        draft_len = self.method.default_draft_len if draft_len is None else draft_len
        return PlanContext(
            recipe=self._fitted(),
            choice=self.choice,
            method=self.method,
            options=self.options,
            draft_shape=self.method.draft_shape(self.options, draft_len),
            sources=self.sources,
            target=self.target,
            draft=self.draft,
            head=self.head,
        )

    def _fitted(self) -> Recipe:
        """Lower the default length to what the target has positions for; what the recipe says itself was checked."""
        engine = self.recipe.engine
        length = min(engine.max_seq_len, self._limit() or engine.max_seq_len)
        return self.recipe.model_copy(update={"engine": engine.model_copy(update={"max_seq_len": length})})
