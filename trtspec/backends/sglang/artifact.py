# SPDX-License-Identifier: Apache-2.0
"""The artifact of SGLang: unconverted checkpoints, and a Triton repository with paths to them.

engine.json contains the arguments of Engine, and adaptive.json SGLang's form of a schedule. `alone` returns the
commands that start SGLang's own server or Dynamo's worker with the same arguments
(sgl-project/sglang:python/sglang/srt/server_args.py@v0.5.23, where options are named like their fields).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from trtspec.backends.base import ArtifactPlan
from trtspec.backends.common.steps import SERVED_PATHS, CopyFiles, plan_source_artifact, serving_settings, token_models
from trtspec.backends.context import PlanContext
from trtspec.backends.serving import ServingHooks, StandaloneServer, command_options, load_absolute, require_package
from trtspec.backends.sglang.arguments import adaptive_config, engine_arguments
from trtspec.backends.sglang.versions import methods
from trtspec.core.errors import DeployError
from trtspec.core.installation import installed_version
from trtspec.engine.simulated_acceptance import mean_accepted_len
from trtspec.serving.triton.names import TARGET
from trtspec.store.artifact import Manifest
from trtspec.store.files import FileReader
from trtspec.store.step import Step

MODELS = Path(__file__).with_name("models")
ENGINE_JSON = Path(TARGET, "1", "engine.json")
PACKAGE = "sglang"
# Variables: python/sglang/srt/environ.py; their effect: speculative/eagle_utils.py (eagle_sample), both @v0.5.23.
UNO = "--speculative-algorithm=UNO"
TOP_K_1 = "--speculative-eagle-topk=1"
TOKENS_ALONE = "skip_tokenizer_init"  # set for Triton, whose models tokenize; a standalone engine tokenizes itself


def check_installed(artifact: Path, manifest: Manifest) -> None:
    """Raise DeployError if SGLang is missing or its version is not the recipe's."""
    wanted, found = manifest.recipe.engine.version, installed_version(PACKAGE)
    hint = f"pip install {PACKAGE}=={wanted}"
    require_package(PACKAGE, hint)
    if found and found != wanted:
        message = f"SGLang {found} is installed, but the recipe was checked for {wanted}"
        raise DeployError(message, where=sys.executable, hint=f"{hint}, or build with --set engine.version={found}")


def alone(repository: Path, artifact: str, version: str) -> StandaloneServer:
    document = load_absolute(repository, ENGINE_JSON, artifact)
    arguments = command_options({key: value for key, value in document.items() if key != TOKENS_ALONE})
    return StandaloneServer(
        framework="sglang",
        serve=("python3", "-m", "sglang.launch_server", "--host=0.0.0.0", *arguments),
        arguments=arguments,
    )


def simulate(server: StandaloneServer, rates: Sequence[float], version: str) -> StandaloneServer:
    """Return the server with forced acceptance; SGLang takes only the mean, and real draft tokens only in chains.

    Raises DeployError for UNO, whose chains ignore the setting, and whose steps give a token that it does not count.
    """
    if UNO in server.serve:
        raise DeployError("SGLang does not force the acceptance of UNO", hint="measure it with its adapter")
    is_chain = TOP_K_1 in server.serve
    forced = {
        "SGLANG_SIMULATE_ACC_LEN": f"{mean_accepted_len(rates):.6g}",
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token" if is_chain else "fixed",
    }
    return replace(server, environment=forced)


def serving() -> ServingHooks:
    return ServingHooks(
        check_machine=check_installed,
        models=MODELS,
        requirements=lambda version: (f"{PACKAGE}=={version}",),
        alone=alone,
        simulate=simulate,
    )


def plan_artifact(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    engine = context.resolved.engine
    arguments = engine_arguments(context, *SERVED_PATHS)
    documents = {"engine": arguments} | ({"adaptive": adaptive} if (adaptive := adaptive_config(context)) else {})
    repository = token_models(
        MODELS,
        serving_settings(context),
        {f"{name}.json": json.dumps(document, indent=2) + "\n" for name, document in documents.items()},
        max_input_len=engine.max_input_len,
        max_seq_len=engine.max_seq_len,
        gpu_ids=context.resolved.serving.placement.target,
        greedy_only=None,
        structured_output=context.recipe.serving.structured_output,
        draft_len=context.draft_shape.max_depth,
    )
    facts = {f"{name}_json": document for name, document in documents.items()}
    plan = plan_source_artifact(context, reader, PACKAGE, repository, facts)
    return replace(plan, steps={**plan.steps, **_copy_steps(context, reader)})


def _copy_steps(context: PlanContext, reader: FileReader) -> dict[str, Step]:
    """Return the steps that copy the method's further files, by their directory in the artifact."""
    method = methods().get(context.method_name)
    copies = method.copies(context.options) if method else {}
    return {
        place: CopyFiles(PurePosixPath(place).name, reader.read(paths[0].parent, paths))
        for place, paths in copies.items()
        if paths
    }
