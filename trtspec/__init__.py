# SPDX-License-Identifier: Apache-2.0
"""Python API of trtspec: build, verify and serve models with speculative decoding on TensorRT-LLM.

The functions have the names of the commands, which call them:

    recipe = trtspec.load_recipe("recipes/quickstart.yaml")
    built = trtspec.build(recipe)
    assert trtspec.verify(built.artifact).ok
    print(trtspec.generate(built.artifact, "Once upon a time").text)

They return typed results, raise `TrtspecError` for errors that the caller can fix, print nothing and never exit. Each
function imports its dependencies when it is called, so `import trtspec` is fast and loads no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.core.installation import __version__

if TYPE_CHECKING:
    from trtspec.bench.artifact import GeneratedText
    from trtspec.bench.gates import SkippedCheck, VerificationReport
    from trtspec.core.diagnostics import Diagnostic, RecipeError
    from trtspec.core.errors import TrtspecError
    from trtspec.deployment.journal import RunningDeployment
    from trtspec.planning.check.recipe import CheckResult
    from trtspec.planning.pipeline import Build, BuildResult, PartialBuildResult
    from trtspec.recipe.load import LoadedRecipe
    from trtspec.store.executor import Observer
    from trtspec.store.registries.listing import TaggedArtifact
    from trtspec.store.registries.pull import PullResult
    from trtspec.store.registries.push import PushResult
    from trtspec.store.signatures.evaluate import AcceptedSignature
    from trtspec.store.signatures.sign import SignResult


_TYPES = {
    "Build": "trtspec.planning.pipeline",
    "BuildResult": "trtspec.planning.pipeline",
    "CheckResult": "trtspec.planning.check.recipe",
    "RunningDeployment": "trtspec.deployment.journal",
    "Diagnostic": "trtspec.core.diagnostics",
    "GeneratedText": "trtspec.bench.artifact",
    "LoadedRecipe": "trtspec.recipe.load",
    "PartialBuildResult": "trtspec.planning.pipeline",
    "PullResult": "trtspec.store.registries.pull",
    "AcceptedSignature": "trtspec.store.signatures.evaluate",
    "PushResult": "trtspec.store.registries.push",
    "SignResult": "trtspec.store.signatures.sign",
    "Observer": "trtspec.store.executor",
    "RecipeError": "trtspec.core.diagnostics",
    "TaggedArtifact": "trtspec.store.registries.listing",
    "TrtspecError": "trtspec.core.errors",
    "VerificationReport": "trtspec.bench.gates",
}
__all__ = [
    "AcceptedSignature",
    "Build",
    "BuildResult",
    "CheckResult",
    "Diagnostic",
    "GeneratedText",
    "LoadedRecipe",
    "Observer",
    "PartialBuildResult",
    "PullResult",
    "PushResult",
    "RecipeError",
    "RunningDeployment",
    "SignResult",
    "TaggedArtifact",
    "TrtspecError",
    "VerificationReport",
    "__version__",
    "build",
    "build_until",
    "check",
    "deploy",
    "generate",
    "generate_all",
    "list_artifacts",
    "load_recipe",
    "load_recipes",
    "plan",
    "pull",
    "push",
    "sign",
    "verify",
    "verify_signature",
]

_Progress = Callable[[str, int, int], None]
_ReadProgress = Callable[[int, int], None]


def __getattr__(name: str) -> Any:
    if name in _TYPES:
        return getattr(importlib.import_module(_TYPES[name]), name)
    raise AttributeError(f"module 'trtspec' has no attribute {name!r}")


def load_recipe(path: str | PathLike[str], *, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Load and validate one recipe from a file, or a recipe shipped with trtspec by its name.

    `overrides` are "dotted.key=value" strings, as for `--set`. Raises RecipeError with all problems and their
    positions, also if the file has a `matrix` of several recipes.
    """
    from trtspec.recipe.load import load_recipe as load

    return load(Path(path), overrides)


def load_recipes(
    path: str | PathLike[str], *, overrides: Sequence[str] = (), variants: Sequence[str] = ()
) -> list[LoadedRecipe]:
    """Load and validate all recipes of a file: one for each combination of its `matrix`.

    `variants` are names or patterns of the combinations to use. Raises RecipeError like `load_recipe`.
    """
    from trtspec.recipe.load import load_matrix

    return load_matrix(Path(path), overrides, variants)


def check(recipe: LoadedRecipe | str | PathLike[str]) -> CheckResult:
    """Validate a recipe against its checkpoints, method and backend without loading weights.

    `CheckResult.diagnostics` has the problems of the recipe. Raises RecipeError only if the file is not a readable
    recipe.
    """
    from trtspec.planning.check.recipe import check_recipe

    return check_recipe(_as_recipe(recipe))


def plan(recipe: LoadedRecipe | str | PathLike[str]) -> Build:
    """Plan a build without running it: steps with their cache keys, memory and predicted speed.

    Raises RecipeError with every problem that prevents the build.
    """
    from trtspec.planning.pipeline import plan_build

    return plan_build(_as_recipe(recipe))


def build(
    recipe: LoadedRecipe | str | PathLike[str],
    *,
    out: str | PathLike[str] | None = None,
    observer: Observer | None = None,
    on_prepare: _Progress = lambda what, done, total: None,
    on_read: _ReadProgress = lambda done, total: None,
    on_warnings: Callable[[Sequence[Diagnostic]], None] = lambda diagnostics: None,
) -> BuildResult:
    """Build the artifact of a recipe at `out` (default `build/NAME`), reusing the steps that are in the store.

    `observer` is notified of each step, `on_prepare` gets (what, bytes done, bytes total) of downloads, `on_read` gets
    (bytes done, bytes total) of sources, and `on_warnings` gets the diagnostics of a recipe that can be built. Raises
    RecipeError for a recipe that cannot be built, and StepError if a step fails.
    """
    from trtspec.checkpoints.tokenizer import trial_ahead

    loaded = _as_recipe(recipe)
    with trial_ahead(loaded.recipe.target.model, loaded.recipe.target.revision):  # while this process imports
        from trtspec.planning.pipeline import check_builds, default_artifact_dir, open_store, plan_runnable, run_build
        from trtspec.store.executor import Unobserved

        store = open_store()
        place = Path(out) if out is not None else default_artifact_dir(loaded.recipe)
        (checked,) = check_builds([(loaded, place)], store)
    planned = plan_runnable(loaded, checked, store, on_prepare, on_read)
    on_warnings(planned.diagnostics)
    return run_build(planned, place, store, observer or Unobserved())


def build_until(
    recipe: LoadedRecipe | str | PathLike[str],
    until: str,
    *,
    observer: Observer | None = None,
    on_prepare: _Progress = lambda what, done, total: None,
    on_read: _ReadProgress = lambda done, total: None,
    on_warnings: Callable[[Sequence[Diagnostic]], None] = lambda diagnostics: None,
) -> PartialBuildResult:
    """Run the steps of a recipe up to `until` into the store, without publishing an artifact.

    `until` is the name of a step, such as "convert-target", or a common prefix of several: "convert". A later `build`
    of the recipe reuses these steps, also on another machine with a copy of the store. Only the tools of these steps
    have to be installed. `build` describes the other arguments and the errors.
    """
    from trtspec.checkpoints.tokenizer import trial_ahead

    loaded = _as_recipe(recipe)
    with trial_ahead(loaded.recipe.target.model, loaded.recipe.target.revision):
        from trtspec.planning.pipeline import check_builds, default_artifact_dir, open_store, plan_runnable, store_steps
        from trtspec.store.executor import Unobserved

        store = open_store()
        (checked,) = check_builds([(loaded, default_artifact_dir(loaded.recipe))], store, until)
    planned = plan_runnable(loaded, checked, store, on_prepare, on_read, until)
    on_warnings(planned.diagnostics)
    return store_steps(planned, until, store, observer or Unobserved())


def verify(
    artifact: str | PathLike[str],
    *,
    source: str | PathLike[str] | None = None,
    prompts: str | PathLike[str] | None = None,
    max_tokens: int = 64,
    max_runs: int = 5,
    skip_gates: Sequence[str] = (),
    rehash: bool = False,
    report: str | PathLike[str] | None = None,
    manifest: str = "",
    on_progress: _Progress = lambda what, done, total: None,
    on_unwritten: Callable[[TrtspecError], None] = lambda error: None,
) -> VerificationReport:
    """Compare an artifact's output with its target's, evaluate its gates and record the result.

    `source` is the target's checkpoint if it was moved. `prompts` is a file that replaces the artifact's own prompts.
    `max_tokens` limits the new tokens per prompt, and `max_runs` the runs for a close speed-up gate. `report` is a file
    for the report in place of the artifact's own, and `manifest` the required "sha256:..." of the manifest. With
    `rehash`, unchanged files are hashed again. A failed check is part of the result (`ok`, `checks`). TrtspecError is
    raised if nothing could be checked. `on_unwritten` gets the error if the report cannot be written to the artifact.
    """
    from trtspec.bench.gates import check_gate_names
    from trtspec.bench.verify import verify_artifact
    from trtspec.store.artifact import parse_expected

    return verify_artifact(
        Path(artifact),
        source=_as_path(source),
        prompts_file=_as_path(prompts),
        max_tokens=max_tokens,
        max_runs=max_runs,
        skip=check_gate_names(skip_gates),
        report=_as_path(report),
        reread=rehash,
        expected=parse_expected(manifest),
        on_progress=on_progress,
        on_unwritten=on_unwritten,
    )


def generate(
    artifact: str | PathLike[str],
    prompt: str,
    *,
    max_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: Sequence[str] = (),
    guide_type: str = "",
    guide: str = "",
    on_text: Callable[[str], None] | None = None,
) -> GeneratedText:
    """Generate text from an artifact in this process; `on_text` receives each new piece of text.

    Temperature 0 is greedy decoding. With a `guide_type` ("json", "json_schema", "regex" or "ebnf_grammar") the text
    fits the grammar in `guide`, which requires the extra `structured`. Raises TrtspecError for an artifact whose engine
    runs in another process, and for an unsupported guide.
    """
    from trtspec.bench.artifact import generate_one
    from trtspec.engine.generation.request import Constraint, SamplingOptions

    sampling = SamplingOptions(temperature, top_k, top_p, seed)
    constraint = Constraint(guide_type, guide) if guide_type else None
    options: dict[str, Any] = {"max_tokens": max_tokens, "sampling": sampling, "stop": tuple(stop)}
    return generate_one(Path(artifact), prompt, **options, constraint=constraint, on_text=on_text)


def generate_all(
    artifact: str | PathLike[str],
    prompts: str | PathLike[str],
    *,
    max_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: Sequence[str] = (),
    guide_type: str = "",
    guide: str = "",
) -> list[tuple[str, GeneratedText]]:
    """Generate a text for every prompt of a file, in batches; return (prompt id, text) pairs.

    `prompts` is a prompt file or the name of a shipped set. `generate` describes the other arguments and the errors.
    """
    from trtspec.bench.artifact import generate_many
    from trtspec.engine.generation.request import Constraint, SamplingOptions

    sampling = SamplingOptions(temperature, top_k, top_p, seed)
    constraint = Constraint(guide_type, guide) if guide_type else None
    options: dict[str, Any] = {"max_tokens": max_tokens, "sampling": sampling, "stop": tuple(stop)}
    return generate_many(Path(artifact), Path(prompts), **options, constraint=constraint)


def push(
    artifact: str | PathLike[str],
    location: str,
    *,
    manifest: str = "",
    on_progress: _Progress = lambda what, done, total: None,
) -> PushResult:
    """Push an artifact to a registry ("oci://HOST/NAME:TAG") or to an OCI image layout ("file:PATH:TAG").

    Files that the location already has are not sent again. `manifest` is the required "sha256:..." of the artifact's
    manifest, and `on_progress` gets (what, bytes done, bytes total). Raises DigestMismatch if a file differs from the
    manifest, and TrtspecError if the location does not accept the artifact; the tag is then unchanged.
    """
    from trtspec.store.artifact import parse_expected
    from trtspec.store.registries.push import push_artifact

    expected = parse_expected(manifest)
    return push_artifact(Path(artifact), location, expected=expected, on_progress=on_progress)


def sign(
    artifact: str | PathLike[str],
    *,
    key: str = "",
    keyless: bool = False,
    identity_token: str = "",
    location: str = "",
    manifest: str = "",
    on_progress: _Progress = lambda what, done, total: None,
) -> SignResult:
    """Sign an artifact in a directory, or at a location of `push`, where the signature is attached.

    `key` is the file of a private key or "env://NAME". `keyless` signs with the identity of this CI job, or of the
    token in the variable that `identity_token`, "env://NAME", names. `location` is the only address that the signature
    is for, and `manifest` the required "sha256:..." of the manifest. `on_progress` gets (what, bytes done, bytes
    total). Raises TrtspecError if the key cannot be used, and DigestMismatch if a file differs from the manifest.
    """
    from trtspec.core.errors import TrtspecError
    from trtspec.store.artifact import parse_expected
    from trtspec.store.registries.repository import check_address, is_location
    from trtspec.store.signatures.keyless import open_keyless_signer
    from trtspec.store.signatures.keys import load_signer
    from trtspec.store.signatures.sign import sign_directory, sign_location

    if bool(key) == (keyless or bool(identity_token)):
        raise TrtspecError("sign either with --key or with --keyless", hint="see docs/signatures.md")
    expected = parse_expected(manifest)
    signer = load_signer(key) if key else open_keyless_signer(identity_token)
    if isinstance(artifact, str) and is_location(artifact):
        if location:
            raise TrtspecError("--location is for a directory; the signature of a location is for that location")
        return sign_location(artifact, signer, expected=expected)
    if location:
        check_address(location, "--location")
    return sign_directory(Path(artifact), signer, location=location, expected=expected, on_progress=on_progress)


def verify_signature(
    artifact: str | PathLike[str], policy: str | PathLike[str], *, manifest: str = ""
) -> AcceptedSignature:
    """Return the signature of an artifact that fulfils a policy, without reading the artifact's files.

    `artifact` is a directory or a location of `push`, and `manifest` the required "sha256:..." of its manifest. Raises
    SignatureRefused with the reasons if no signature fulfils the policy, and RecipeError if the policy is not valid.
    """
    from trtspec.store.artifact import parse_expected
    from trtspec.store.registries.pull import check_directory, check_location
    from trtspec.store.registries.repository import is_location
    from trtspec.store.signatures.policy import load_policy

    loaded, expected = load_policy(policy), parse_expected(manifest)
    if isinstance(artifact, str) and is_location(artifact):
        return check_location(artifact, loaded, expected)
    return check_directory(Path(artifact), loaded, expected)


def pull(
    location: str,
    *,
    out: str | PathLike[str] | None = None,
    manifest: str = "",
    signature: str | PathLike[str] = "",
    on_progress: _Progress = lambda what, done, total: None,
) -> PullResult:
    """Pull an artifact from a location of `push` into the directory `out` (default `build/NAME`) and verify it.

    Files in the store, and in an artifact at `out`, are not fetched again. `manifest` is the required "sha256:..." of
    the artifact's manifest, and `signature` a policy that its signature has to fulfil (default:
    TRTSPEC_SIGNATURE_POLICY). `on_progress` gets (what, bytes done, bytes total). Raises DigestMismatch if the
    location has other bytes than it promises, SignatureRefused if no signature fulfils the policy, and TrtspecError if
    the artifact is not there; `out` is then unchanged.
    """
    from trtspec.store.artifact import parse_expected
    from trtspec.store.registries.pull import by_name, pull_artifact
    from trtspec.store.signatures.policy import find_policy

    place = by_name if out is None else lambda manifest, digest: Path(out)
    expected = parse_expected(manifest)
    return pull_artifact(location, place, expected=expected, policy=find_policy(signature), on_progress=on_progress)


def list_artifacts(location: str, *, on_progress: _Progress = lambda what, done, total: None) -> list[TaggedArtifact]:
    """Return the tagged artifacts of a location of `push`; `on_progress` gets (what, tags done, tags total)."""
    from trtspec.store.registries.listing import list_artifacts as list_tags

    return list_tags(location, on_progress=on_progress)


def deploy(
    artifact: str | PathLike[str],
    *,
    target: str = "local",
    name: str | None = None,
    host: str = "127.0.0.1",
    openai_host: str = "",
    ports: Mapping[str, int] | None = None,
    detach: bool = True,
    timeout_s: float = 300.0,
    wait_for_warmup: bool = False,
    drain_s: int | None = None,
    skip_gates: Sequence[str] = (),
    baseline: str | None = None,
    manifest: str = "",
    signature: str | PathLike[str] = "",
    trust_report: str = "",
    canary: Sequence[int] = (),
    shadow: int | None = None,
    settings: Mapping[str, str] | None = None,
    on_progress: _Progress = lambda what, done, total: None,
    on_event: Callable[[str, str], None] = lambda state, what: None,
    on_skipped: Callable[[Sequence[SkippedCheck]], None] = lambda skipped: None,
) -> RunningDeployment:
    """Deploy an artifact whose gates pass; return once the server has answered a request.

    `artifact` is a directory, or a location of `push`, whose artifact is pulled into the cache first. The pods of
    a cluster pull it themselves. `signature` is a policy that its signature has to fulfil (default:
    TRTSPEC_SIGNATURE_POLICY).
    `ports` are by service ("http", "grpc", "metrics", "openai"), and `settings` are specific to the target. The other
    parameters are the options of `trtspec deploy`. Without `detach` the server ends with this process. `on_event`
    receives (state, message) during the start, and `on_skipped` the gates that are not evaluated.
    `RunningDeployment.as_dict()` has the endpoints, and `trtspec stop NAME` stops the server. Raises SignatureRefused
    if no signature fulfils the policy, GateNotMet if a gate fails and DeployError if the server does not start.
    """
    from trtspec.bench.gates import check_gate_names
    from trtspec.deployment.base import deploy as serve
    from trtspec.deployment.base import obtain_artifact
    from trtspec.deployment.options import DeployOptions
    from trtspec.store.artifact import parse_expected
    from trtspec.store.signatures.policy import find_policy

    expected = parse_expected(manifest)
    place, expected, source = obtain_artifact(
        artifact, target, expected, policy=find_policy(signature), on_progress=on_progress
    )
    options = DeployOptions(
        name=name,
        host=host,
        openai_host=openai_host,
        ports=dict(ports or {}),
        detach=detach,
        timeout_s=timeout_s,
        wait_warm=wait_for_warmup,
        drain_s=drain_s,
        skip_gates=tuple(sorted(check_gate_names(skip_gates))),
        manifest=expected,
        trusted_report=parse_expected(trust_report, "--trust-report"),
        shares=tuple(canary),
        shadow=shadow,
        settings=dict(settings or {}),
        source=source,
        on_event=on_event,
    )
    return serve(place, target, options, on_progress=on_progress, baseline=baseline, on_left_out=on_skipped)


def _as_recipe(recipe: LoadedRecipe | str | PathLike[str]) -> LoadedRecipe:
    return load_recipe(recipe) if isinstance(recipe, str | PathLike) else recipe


def _as_path(path: str | PathLike[str] | None) -> Path | None:
    return None if path is None else Path(path)
