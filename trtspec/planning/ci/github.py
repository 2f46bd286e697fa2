# SPDX-License-Identifier: Apache-2.0
"""GitHub Actions. Schema: json.schemastore.org/github-workflow.json."""

from __future__ import annotations

from typing import Any

from trtspec.planning.ci.base import CACHE, KEY_OF_PLAN, BuildJob, Pipeline

RUNNER = "ubuntu-latest"
SUMMARY = '"$GITHUB_STEP_SUMMARY"'


def workflow(pipeline: Pipeline) -> dict[str, Any]:
    """Return the workflow; save it as .github/workflows/trtspec.yml."""
    options = pipeline.options
    return {
        "name": "trtspec",
        "on": {"push": {"branches": [options.branch]}, "pull_request": {}, "workflow_dispatch": {}},
        "permissions": {"contents": "read"},
        "concurrency": {"group": "trtspec-${{ github.ref }}", "cancel-in-progress": True},
        "env": {
            "HF_TOKEN": "${{ secrets.HF_TOKEN }}",
            "TRTSPEC_CACHE": f"${{{{ github.workspace }}}}/{CACHE}",
        },
        "jobs": {"check": _check(pipeline), **{_job_id(job): _build(job, pipeline) for job in pipeline.jobs}},
    }


def _job_id(job: BuildJob) -> str:
    """Return a valid job id, which has letters, digits, - and _."""
    return "build-" + "".join(each if each.isalnum() or each in "-_" else "_" for each in job.name)


def _setup(pipeline: Pipeline) -> list[dict[str, Any]]:
    return [
        {"uses": "actions/checkout@v5"},
        {"uses": "actions/setup-python@v6", "with": {"python-version": pipeline.options.python}},
        {"name": "Install trtspec", "run": pipeline.install()},
    ]


def _check(pipeline: Pipeline) -> dict[str, Any]:
    """Return the job that checks all recipes within minutes, before anything is built."""
    plans = "\n".join(job.command("plan") for job in pipeline.jobs)
    return {
        "runs-on": pipeline.options.cpu_runner or RUNNER,
        "timeout-minutes": 30,
        "steps": [
            *_setup(pipeline),
            {"name": "Check the recipes", "run": "\n".join(pipeline.checks())},
            {
                "name": "Show the plans",
                "run": f"{{\necho '```'\n{plans}\necho '```'\n}} >> {SUMMARY}\n",
            },
        ],
    }


def _build(job: BuildJob, pipeline: Pipeline) -> dict[str, Any]:
    """Return the job that builds and verifies one artifact."""
    options = pipeline.options
    key = f'echo "key=$({job.command("plan", "--json")} | python -c "{KEY_OF_PLAN}")" >> "$GITHUB_OUTPUT"'
    prefix = f"trtspec-${{{{ runner.os }}}}-{job.name}-"
    return {
        "needs": "check",
        "runs-on": job.runner(options) or RUNNER,
        "timeout-minutes": options.timeout_minutes,
        "steps": [
            *_setup(pipeline),
            {"name": "Find the key of the artifact", "id": "plan", "run": key},
            {
                "name": "Restore the store of steps",
                "uses": "actions/cache@v4",
                "with": {
                    "path": CACHE,
                    "key": f"{prefix}${{{{ steps.plan.outputs.key }}}}",
                    "restore-keys": prefix,
                },
            },
            {"name": "Build", "run": job.build()},
            {"name": "Verify", "run": job.verify()},
            {
                "name": "Report",
                "if": "${{ !cancelled() }}",
                "run": "\n".join(
                    (job.report("junit", "junit.xml"), job.report("github"), f"{job.report('markdown')} >> {SUMMARY}")
                ),
            },
            {"name": "Pack the artifact", "run": job.pack()},
            {
                "name": "Upload the artifact",
                "uses": "actions/upload-artifact@v4",
                "with": _upload(job.name, [f"{job.name}.tar"], options.keep_days),
            },
            {
                "name": "Upload the results",
                "if": "${{ !cancelled() }}",
                "uses": "actions/upload-artifact@v4",
                "with": _upload(f"{job.name}-results", ["junit.xml", "build.json"], options.keep_days),
            },
        ],
    }


def _upload(name: str, paths: list[str], keep_days: int) -> dict[str, Any]:
    path = paths[0] if len(paths) == 1 else "".join(f"{each}\n" for each in paths)
    return {"name": name, "path": path, "if-no-files-found": "error", "retention-days": keep_days}


SYSTEM = workflow
