# SPDX-License-Identifier: Apache-2.0
"""Running docker, podman and kubectl, and the causes of their failures, recognized by patterns of their standard error.

The patterns match texts of docker's CLI, daemon and plugins, of podman, kubectl and the Kubernetes API server. The
error has the cause and a fix, followed by the program's own output; unrecognized output is shown unchanged.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtspec.core.errors import DeployError, StepTimeout

MOST_LINES = 5  # of the program's output in an error
RENDER = "render the files for another machine with --render DIR"


@dataclass(frozen=True)
class FailureCause:
    """A recognized cause of a program's failure; `pattern` matches its standard error.

    `is_before` is true if the failure occurs before anything is started or changed. `message` and `hint` may refer to
    groups of the pattern.
    """

    pattern: str
    message: str
    hint: str
    is_before: bool = True


class ToolFailed(DeployError):
    """A program failed; `cause` is None if it was not recognized."""

    def __init__(self, message: str, *, hint: str, cause: FailureCause | None = None) -> None:
        super().__init__(message, hint=hint)
        self.cause = cause

    @property
    def is_before(self) -> bool:
        """Return whether the program certainly did not start or change anything."""
        return self.cause is not None and self.cause.is_before


DOCKER_CAUSES = (
    FailureCause(
        r"unknown flag: --format|'buildx' is not a docker command|unknown command: (?:\"|')?docker buildx",
        "docker has no buildx plugin",
        "install it (Debian: docker-buildx, Docker's own packages: docker-buildx-plugin), or pull the image in advance",
    ),
    FailureCause(
        r"unknown flag: --file|unknown shorthand flag: 'f'|'compose' is not a docker command"
        r"|unknown command: (?:\"|')?docker compose|docker: unknown command",
        "docker has no compose plugin",
        f"install it (Debian: docker-compose-v2, Docker's own packages: docker-compose-plugin), or {RENDER}",
    ),
    FailureCause(
        r"permission denied while trying to connect to the [Dd]ocker (?:daemon|API)"
        r"|dial unix \S*docker\S*: connect: permission denied",
        "permission denied for the docker daemon",
        "add the user to the group docker and log in again, or use rootless docker",
    ),
    FailureCause(
        r"Cannot connect to the Docker daemon(?: at (?P<at>\S+?)\.)?(?: |$)|Is the docker daemon running\?"
        r"|error during connect|failed to connect to the docker API",
        "the docker daemon is not reachable",
        "start it (systemctl start docker), or select a running one with DOCKER_HOST or `docker context use`",
    ),
    FailureCause(
        r"could not select device driver|nvidia-container-cli|unknown or invalid runtime name: nvidia"
        r"|unresolvable CDI devices",
        "docker cannot provide a GPU to the container",
        "install the NVIDIA container toolkit and run: nvidia-ctk runtime configure --runtime=docker",
    ),
    FailureCause(
        r"(?P<at>\d+(?:\.\d+){3}:\d+)[^\n]*(?:port is already allocated|address already in use)"
        r"|ports are not available: [^\n]*?(?P<also>\d+(?:\.\d+){3}:\d+)",
        "{at}{also} is in use",
        "choose other ports with --http-port, --grpc-port, --metrics-port and --openai-port",
        is_before=False,
    ),
    FailureCause(
        r"pull access denied|manifest unknown|No such image|manifest for \S+ not found|repository does not exist"
        r"|failed to resolve reference|:\S+: not found|name unknown",
        "image not found, or access denied by its registry",
        "compare the image's name, tag and digest with the registry's (docker pull IMAGE); push the image, or log in "
        "with `docker login REGISTRY`",
    ),
    FailureCause(
        r"no basic auth credentials|unauthorized: |denied: requested access|authentication required"
        r"|failed to authorize|40[13] (?:Unauthorized|Forbidden)",
        "access to the image denied by the registry",
        "log in with `docker login REGISTRY`, and compare the image's name with the registry's",
    ),
    FailureCause(
        r"toomanyrequests|429 Too Many Requests",
        "the registry's pull rate limit is exceeded",
        "log in with `docker login`, or pull the image later",
    ),
    FailureCause(
        r"lookup \S+.*(?:no such host|i/o timeout|server misbehaving)|TLS handshake timeout|dial tcp .*(?:i/o timeout"
        r"|no route to host|connection refused)|x509: ",
        "the registry cannot be reached",
        "check the network and the registry's name, or pull the image in advance",
    ),
    FailureCause(
        r"no space left on device",
        "the disk of the docker daemon is full",
        "free space, for example with `docker system prune`",
    ),
    FailureCause(
        r"bind source path does not exist|invalid mount config|is not shared from the host|Mounts denied",
        "docker cannot mount the artifact",
        "the daemon reads the path on its own machine: a remote daemon or a virtual machine needs the artifact there",
    ),
    FailureCause(
        r"no matching manifest for|exec format error",
        "the image is for another processor architecture",
        "build it for this machine: docker buildx build --platform",
        is_before=False,
    ),
    FailureCause(
        r"container \S* ?is unhealthy|container for service .* is unhealthy|dependency failed to start"
        r"|container \S+ exited \(\d+\)|exited \(\d+\)",
        "the container started but did not answer a request",
        "trtspec logs NAME shows its output",
        is_before=False,
    ),
    FailureCause(
        r"application not healthy after|context deadline exceeded",
        "the container was not healthy in time",
        "trtspec logs NAME shows its output; increase the limit with --timeout",
        is_before=False,
    ),
)
KUBECTL_CAUSES = (
    FailureCause(
        r"current-context is not set|no context chosen|no configuration has been provided"
        r"|invalid configuration: no configuration",
        "kubectl's current context is not set",
        "`kubectl config get-contexts` lists the contexts; choose one with --target-option context=NAME or with "
        "`kubectl config use-context NAME`, or set KUBECONFIG",
    ),
    FailureCause(
        r'context "(?P<at>[^"]*)" does not exist|context was not found for specified context: (?P<also>\S+)',
        "unknown kubectl context {at}{also}",
        "`kubectl config get-contexts` lists the contexts",
    ),
    FailureCause(
        r"error loading config file|invalid configuration",
        "invalid kubectl configuration",
        "`kubectl config view` shows it; KUBECONFIG is the path of the file",
    ),
    FailureCause(
        r"certificate signed by unknown authority|x509: |tls: failed to verify",
        "kubectl does not trust the certificate of the cluster's API server",
        "renew the cluster's entry in the kubeconfig",
    ),
    FailureCause(
        r"connection to the server (?P<at>\S+) was refused|Unable to connect to the server|no such host|i/o timeout"
        r"|no route to host|net/http: TLS handshake timeout|couldn't get current server API group list"
        r"|the server is currently unable to handle the request",
        "the cluster's API server cannot be reached",
        "check that the cluster runs and is reachable (network, VPN): kubectl cluster-info",
    ),
    FailureCause(
        r"must be logged in|Unauthorized|provide credentials|getting credentials|exec plugin",
        "the cluster does not accept the credentials",
        "log in to the cluster again; `kubectl auth whoami` shows the user",
    ),
    FailureCause(
        r'Error from server \(Forbidden\)|is forbidden: (?:User|user) "(?P<at>[^"]*)"',
        "this user lacks permission for the operation",
        "`kubectl auth can-i --list --namespace NAMESPACE` shows what the user may do; ask for the missing role",
        is_before=False,
    ),
    FailureCause(
        r'no matches for kind "(?P<at>[^"]*)" in version|doesn\'t have a resource type "(?P<also>[^"]*)"'
        r"|ensure CRDs are installed first",
        "the cluster does not support resources of kind {at}{also}",
        "install its operator (docs/deploy-targets.md lists them), or choose another --target-option form",
        is_before=False,
    ),
    FailureCause(
        r'namespaces? "(?P<at>[^"]*)" not found',
        "the namespace {at} does not exist",
        "kubectl create namespace NAMESPACE, or choose another with --target-option namespace=NAME",
        is_before=False,
    ),
    FailureCause(
        r"exceeded quota",
        "the quota of the namespace is exceeded",
        "`kubectl describe quota` shows it; raise it, or scale another workload down",
        is_before=False,
    ),
    FailureCause(
        r"admission webhook|violates PodSecurity",
        "the pods violate a policy of the cluster",
        "see the message below; contact the cluster's administrator",
        is_before=False,
    ),
    FailureCause(
        r'unknown command "kustomize"|unknown flag: --kustomize',
        "this kubectl does not include kustomize",
        "install kubectl 1.21 or later",
    ),
)


def tool_failure(causes: tuple[FailureCause, ...], what: str, status: int, stderr: str) -> ToolFailed:
    """Return the error for a program that exited with `status`; `what` is the program and its subcommand."""
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    output = "\n".join(lines[-MOST_LINES:])
    for cause in causes:
        if found := re.search(cause.pattern, stderr, re.MULTILINE):
            groups = {name: text or "" for name, text in found.groupdict().items()}
            words = {"at": "", "also": ""} | groups
            message = f"{what} failed: {cause.message.format(**words).strip()}"
            return ToolFailed(message, hint=f"{cause.hint}\n{output}", cause=cause)
    hint = output or f"{what.split(maxsplit=1)[0]} printed no error; run it with --verbose"
    return ToolFailed(f"{what} ended with status {status}", hint=hint)


def run_tool(
    command: Sequence[str],
    what: str,
    causes: tuple[FailureCause, ...],
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> bytes:
    """Run a program and return its standard output; `what` is the program and its subcommand.

    Raises ToolFailed if it fails, DeployError if it cannot be run, and StepTimeout after `timeout_s` seconds.
    """
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise StepTimeout(f"{what} did not end within {timeout_s:.0f} s") from None
    except OSError as error:
        raise DeployError(f"{command[0]} cannot be run: {error.strerror}", hint="is it installed?") from None
    if done.returncode:
        raise tool_failure(causes, what, done.returncode, done.stderr.decode(errors="replace"))
    return done.stdout
