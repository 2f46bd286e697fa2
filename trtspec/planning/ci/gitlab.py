# SPDX-License-Identifier: Apache-2.0
"""GitLab CI/CD. Schema: gitlab-org/gitlab:app/assets/javascripts/editor/schema/ci.json."""

from __future__ import annotations

from typing import Any

from trtspec.planning.ci.base import CACHE, BuildJob, Pipeline

BASE = ".trtspec"


def configuration(pipeline: Pipeline) -> dict[str, Any]:
    """Return the configuration; save it as .gitlab-ci.yml, or include it there."""
    options = pipeline.options
    return {
        "stages": ["check", "build"],
        "variables": {"TRTSPEC_CACHE": f"$CI_PROJECT_DIR/{CACHE}"},
        "workflow": {
            "rules": [
                {"if": '$CI_PIPELINE_SOURCE == "merge_request_event"'},
                {"if": f'$CI_COMMIT_BRANCH == "{options.branch}"'},
                {"if": '$CI_PIPELINE_SOURCE == "web"'},
            ]
        },
        BASE: {
            "image": f"python:{options.python}",
            "interruptible": True,
            "before_script": [pipeline.install()],
        },
        "check": {
            "extends": BASE,
            "stage": "check",
            "timeout": "30 minutes",
            **_tags(options.cpu_runner),
            "script": [*pipeline.checks(), *(job.command("plan") for job in pipeline.jobs)],
        },
        **{f"build {job.name}": _build(job, pipeline) for job in pipeline.jobs},
    }


def _tags(runner: str) -> dict[str, Any]:
    """Return the tags that select a runner; without any, every runner for untagged jobs is right."""
    return {"tags": [runner]} if runner else {}


def _build(job: BuildJob, pipeline: Pipeline) -> dict[str, Any]:
    """Return the job that builds and verifies one artifact."""
    options = pipeline.options
    return {
        "extends": BASE,
        "stage": "build",
        "timeout": f"{options.timeout_minutes} minutes",
        **_tags(job.runner(options)),
        # Entries of the store are found by content, so that the store of any earlier recipe is right, too.
        "cache": {
            "key": {"files": [job.recipe], "prefix": f"trtspec-{job.name}"},
            "fallback_keys": [f"trtspec-{job.name}"],
            "paths": [CACHE],
            "when": "always",
        },
        "script": [job.build(), job.verify(), job.pack()],
        "after_script": [f"{job.report('junit', 'junit.xml')} || true", f"{job.report('markdown')} || true"],
        "artifacts": {
            "name": job.name,
            "when": "always",
            "expire_in": f"{options.keep_days} days",
            "paths": [f"{job.name}.tar", "build.json"],
            "reports": {"junit": "junit.xml"},
        },
    }


SYSTEM = configuration
