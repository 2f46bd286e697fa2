# SPDX-License-Identifier: Apache-2.0
"""CI pipelines written by `trtspec ci`: jobs and commands, rendered for GitHub Actions and GitLab CI/CD."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trtspec.backends.base import in_process_backend, needs_gpu
from trtspec.core.errors import TrtspecError
from trtspec.recipe.load import load_matrix
from trtspec.store.registries.repository import check_address

CACHE = ".trtspec-cache"
KEY_OF_PLAN = "import json, sys; print(json.load(sys.stdin)['steps'][-1]['key'])"
HEADER = "# Written by `trtspec ci {system}`; to update it, run the command again.\n"
KEEP_DAYS = 14  # retention of uploaded artifacts
TIMEOUT_MINUTES = 360  # limit of each build job


@dataclass(frozen=True)
class BuildJob:
    """The CI job that builds and verifies one recipe, or one variant of a recipe with a matrix.

    Attributes:
        name: the recipe's name, which is unique in a pipeline.
        recipe: path of the recipe file, relative to the project's root.
        variant: the variant's name; "" if the file has a single recipe.
        needs_gpu: True if the engine runs on a GPU only.
        runner: label of the runner; "" for the CI system's default.
    """

    name: str
    recipe: str
    variant: str
    needs_gpu: bool
    runner: str

    def command(self, command: str, *more: str) -> str:
        """Return a trtspec command for the job's recipe, quoted for a shell."""
        variant = ["--variant", self.variant] if self.variant else []
        return shlex.join(["trtspec", command, self.recipe, *variant, *more])

    def build(self) -> str:
        """Return the shell command that builds the artifact and writes the result to build.json."""
        return self.command("build", "--json") + " > build.json"

    def verify(self) -> str:
        """Return the shell command that compares the artifact with its target and evaluates the gates."""
        return shlex.join(["trtspec", "verify", f"build/{self.name}", "--undecided", "fail"])

    def sign(self) -> str:
        """Return the shell command that signs the artifact with the identity of the job."""
        return shlex.join(["trtspec", "sign", f"build/{self.name}", "--keyless"])

    def report(self, form: str, out: str = "") -> str:
        """Return the shell command that writes a report in format `form` to the file `out`, or to standard output."""
        into = ["--out", out] if out else []
        where = f"build/{self.name}"
        return shlex.join(["trtspec", "report", where, "--results", "build.json", "--format", form, *into])

    def pack(self) -> str:
        """Return the shell command that packs the artifact as tar; upload actions lose links and permissions."""
        return shlex.join(["tar", "-C", "build", "-cf", f"{self.name}.tar", self.name])


@dataclass(frozen=True)
class Pipeline:
    """A CI pipeline: the recipe files to check and the jobs that build artifacts.

    Attributes:
        python: the Python version of all jobs.
        packages: the arguments of `pip install`; "" for trtspec with the extras that builds and tests need.
        runner: label of the runners of jobs without a GPU; "" for the CI system's default.
        branch: the branch on which pushes start the pipeline.
        sign: whether jobs sign what they have built and verified, except in pull requests.
        remote: the address of the team store, which replaces the CI system's cache; "" for none.
    """

    recipes: tuple[str, ...]
    jobs: tuple[BuildJob, ...]
    python: str
    packages: str
    runner: str
    branch: str
    sign: bool = False
    remote: str = ""

    def install(self) -> str:
        extras = [in_process_backend()[0], *(["sign"] if self.sign else []), "triton"]
        packages = self.packages or f"trtspec[{','.join(extras)}]"
        return shlex.join(["python", "-m", "pip", "install", *shlex.split(packages)])

    def checks(self) -> list[str]:
        return [shlex.join(["trtspec", "check", recipe]) for recipe in self.recipes]


def make_pipeline(
    recipes: Sequence[Path],
    root: Path,
    *,
    python: str,
    install: str,
    cpu_runner: str,
    gpu_runner: str,
    branch: str,
    sign: bool = False,
    remote: str = "",
) -> Pipeline:
    """Create the pipeline for recipe files of the project at `root`; engines that need a GPU get `gpu_runner`.

    Raises TrtspecError for a file outside the project, a path with "$", two recipes with the same name, and a malformed
    address of a team store. Raises RecipeError for an invalid recipe.
    """
    if remote:
        check_address(remote, "--remote")
    jobs: dict[str, BuildJob] = {}
    paths = [_relative(path, root) for path in recipes]
    for path, relative in zip(recipes, paths, strict=True):
        loaded = load_matrix(path)
        for each in loaded:
            name, on_gpu = each.recipe.name, needs_gpu(each.recipe.engine)
            if name in jobs:
                raise TrtspecError(f"two recipes are called {name}", where=relative, hint="change `name`")
            runner = gpu_runner if on_gpu else cpu_runner
            jobs[name] = BuildJob(name, relative, name if len(loaded) > 1 else "", on_gpu, runner)
    return Pipeline(tuple(paths), tuple(jobs.values()), python, install, cpu_runner, branch, sign, remote)


def render_pipeline(system: str, pipeline: Pipeline) -> str:
    """Return the YAML text of a pipeline for the CI system `system`, a key of SYSTEMS."""
    text = yaml.dump(SYSTEMS[system](pipeline), Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
    return HEADER.format(system=system) + re.sub(r"^'on':", "on:", text, flags=re.MULTILINE)


def _relative(path: Path, root: Path) -> str:
    try:
        relative = path.resolve().relative_to(root.resolve()).as_posix()
        if "$" not in relative:  # CI systems expand variables and expressions, even in quotes
            return relative
        raise TrtspecError("a CI system would expand $ in the path", where=str(path), hint="rename the file")
    except ValueError:
        raise TrtspecError(
            "the recipe is outside the project", where=str(path), hint=f"run it in {path.parent}"
        ) from None


class _Dumper(yaml.SafeDumper):
    """YAML dumper that writes multi-line strings as literal blocks and indents lists."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)


# GitHub Actions. Schema: json.schemastore.org/github-workflow.json.

RUNNER = "ubuntu-latest"
SUMMARY = '"$GITHUB_STEP_SUMMARY"'
ALWAYS = "${{ !cancelled() }}"
IS_NO_PULL_REQUEST = "${{ github.event_name != 'pull_request' }}"  # those of forks get no identity token
# Pull requests may contain anyone's code, so they do not write to the team store.
_GITHUB_REMOTE = {
    "TRTSPEC_REMOTE": "",
    "TRTSPEC_REMOTE_MODE": "${{ github.event_name == 'pull_request' && 'read' || 'read-write' }}",
    "DOCKER_AUTH_CONFIG": "${{ secrets.DOCKER_AUTH_CONFIG }}",
}


def github_workflow(pipeline: Pipeline) -> dict[str, Any]:
    """Return the GitHub Actions workflow as plain data, to be saved as .github/workflows/trtspec.yml."""
    ids = {job: "build-" + re.sub("[^A-Za-z0-9_-]", "_", job.name) for job in pipeline.jobs}  # only valid characters
    builds = {ids[job]: _github_build(job, pipeline) for job in pipeline.jobs}
    return {
        "name": "trtspec",
        "on": {"push": {"branches": [pipeline.branch]}, "pull_request": {}, "workflow_dispatch": {}},
        "permissions": {"contents": "read"},
        "concurrency": {"group": "trtspec-${{ github.ref }}", "cancel-in-progress": True},
        "env": {
            "HF_TOKEN": "${{ secrets.HF_TOKEN }}",
            "TRTSPEC_CACHE": f"${{{{ github.workspace }}}}/{CACHE}",
            **(_GITHUB_REMOTE | {"TRTSPEC_REMOTE": pipeline.remote} if pipeline.remote else {}),
        },
        "jobs": {"check": _github_check(pipeline), **builds},
    }


def _github_setup(pipeline: Pipeline) -> list[dict[str, Any]]:
    return [
        {"uses": "actions/checkout@v5"},
        {"uses": "actions/setup-python@v6", "with": {"python-version": pipeline.python}},
        {"name": "Install trtspec", "run": pipeline.install()},
    ]


def _github_check(pipeline: Pipeline) -> dict[str, Any]:
    """Return the job that checks and plans all recipes before anything is built."""
    plans = "\n".join(job.command("plan") for job in pipeline.jobs)
    return {
        "runs-on": pipeline.runner or RUNNER,
        "timeout-minutes": 30,
        "steps": [
            *_github_setup(pipeline),
            {"name": "Check the recipes", "run": "\n".join(pipeline.checks())},
            {"name": "Show the plans", "run": f"{{\necho '```'\n{plans}\necho '```'\n}} >> {SUMMARY}\n"},
        ],
    }


def _github_build(job: BuildJob, pipeline: Pipeline) -> dict[str, Any]:
    key = f'echo "key=$({job.command("plan", "--json")} | python -c "{KEY_OF_PLAN}")" >> "$GITHUB_OUTPUT"'
    prefix = f"trtspec-${{{{ runner.os }}}}-{job.name}-"
    restored = {"path": CACHE, "key": f"{prefix}${{{{ steps.plan.outputs.key }}}}", "restore-keys": prefix}
    cached = [
        {"name": "Find the key of the artifact", "id": "plan", "run": key},
        {"name": "Restore the store of steps", "uses": "actions/cache@v4", "with": restored},
    ]
    reports = (job.report("junit", "junit.xml"), job.report("github"), f"{job.report('markdown')} >> {SUMMARY}")
    return {
        "needs": "check",
        "runs-on": job.runner or RUNNER,
        "timeout-minutes": TIMEOUT_MINUTES,
        **({"permissions": {"contents": "read", "id-token": "write"}} if pipeline.sign else {}),
        "steps": [
            *_github_setup(pipeline),
            *([] if pipeline.remote else cached),
            {"name": "Build", "run": job.build()},
            {"name": "Verify", "run": job.verify()},
            *([{"name": "Sign", "if": IS_NO_PULL_REQUEST, "run": job.sign()}] if pipeline.sign else []),
            {"name": "Report", "if": ALWAYS, "run": "\n".join(reports)},
            {"name": "Pack the artifact", "run": job.pack()},
            {"name": "Upload the artifact", **_upload(job.name, f"{job.name}.tar")},
            {
                "name": "Upload the results",
                "if": ALWAYS,
                **_upload(f"{job.name}-results", "junit.xml\nbuild.json\n"),
            },
        ],
    }


def _upload(name: str, path: str) -> dict[str, Any]:
    kept = {"name": name, "path": path, "if-no-files-found": "error", "retention-days": KEEP_DAYS}
    return {"uses": "actions/upload-artifact@v4", "with": kept}


# GitLab CI/CD. Schema: gitlab-org/gitlab:app/assets/javascripts/editor/schema/ci.json.

BASE = ".trtspec"


def gitlab_configuration(pipeline: Pipeline) -> dict[str, Any]:
    """Return the GitLab CI/CD configuration as plain data, to be saved as .gitlab-ci.yml or included there."""
    return {
        "stages": ["check", "build"],
        "variables": {
            "TRTSPEC_CACHE": f"$CI_PROJECT_DIR/{CACHE}",
            **({"TRTSPEC_REMOTE": pipeline.remote} if pipeline.remote else {}),
        },
        "workflow": {
            "rules": [
                {
                    "if": '$CI_PIPELINE_SOURCE == "merge_request_event"',
                    **({"variables": {"TRTSPEC_REMOTE_MODE": "read"}} if pipeline.remote else {}),
                },
                {"if": f'$CI_COMMIT_BRANCH == "{pipeline.branch}"'},
                {"if": '$CI_PIPELINE_SOURCE == "web"'},
            ]
        },
        BASE: {
            "image": f"python:{pipeline.python}",
            "interruptible": True,
            "before_script": [pipeline.install()],
        },
        "check": {
            "extends": BASE,
            "stage": "check",
            "timeout": "30 minutes",
            **_gitlab_tags(pipeline.runner),
            "script": [*pipeline.checks(), *(job.command("plan") for job in pipeline.jobs)],
        },
        **{f"build {job.name}": _gitlab_build(job, pipeline) for job in pipeline.jobs},
    }


def _gitlab_tags(runner: str) -> dict[str, Any]:
    """Return the tags that select a runner; an empty dictionary selects any runner for untagged jobs."""
    return {"tags": [runner]} if runner else {}


def _gitlab_build(job: BuildJob, pipeline: Pipeline) -> dict[str, Any]:
    sign = f'if [ "$CI_PIPELINE_SOURCE" != merge_request_event ]; then {job.sign()}; fi'
    # Entries of the store are found by key, so the cached store of any earlier recipe version is usable.
    cache = {
        "key": {"files": [job.recipe], "prefix": f"trtspec-{job.name}"},
        "fallback_keys": [f"trtspec-{job.name}"],
        "paths": [CACHE],
        "when": "always",
    }
    return {
        "extends": BASE,
        "stage": "build",
        "timeout": f"{TIMEOUT_MINUTES} minutes",
        **_gitlab_tags(job.runner),
        **({} if pipeline.remote else {"cache": cache}),
        **({"id_tokens": {"SIGSTORE_ID_TOKEN": {"aud": "sigstore"}}} if pipeline.sign else {}),
        "script": [job.build(), job.verify(), *([sign] if pipeline.sign else []), job.pack()],
        "after_script": [f"{job.report('junit', 'junit.xml')} || true", f"{job.report('markdown')} || true"],
        "artifacts": {
            "name": job.name,
            "when": "always",
            "expire_in": f"{KEEP_DAYS} days",
            "paths": [f"{job.name}.tar", "build.json"],
            "reports": {"junit": "junit.xml"},
        },
    }


SYSTEMS = {"github": github_workflow, "gitlab": gitlab_configuration}
