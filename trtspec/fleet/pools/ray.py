# SPDX-License-Identifier: Apache-2.0
"""Workers on a Ray cluster: `--on ray` starts one on this machine, `ray://HOST:PORT` and `ray:HOST:PORT` use another.

Each step is one Ray task on a node whose labels fit. Ray's own retries are off, because the scheduler counts them. An
exclusive step is sent to one node, with all its processors and GPUs; this pool chooses the node, because Ray cannot
reserve a node of unknown size. Ray serializes steps and results with pickle, so a cluster is as trusted as its
machines; outputs are verified by the store. Calls that Ray may never return from (an unreachable address, a lost head
node) run in a thread with a deadline.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from trtspec.core.errors import TrtspecError
from trtspec.core.installation import __version__
from trtspec.core.paths import store_dir
from trtspec.core.processes import die_with_parent
from trtspec.fleet.labels import Node, Requirement
from trtspec.fleet.pool import Event, Failure, Finished, Lost, Outcome, Pool, PoolKind, PoolOptions, Started, Task
from trtspec.fleet.worker import SentProgress, code_digest, run_step
from trtspec.store.step import Step
from trtspec.store.store import Store
from trtspec.store.team.environment import open_remote

if TYPE_CHECKING:
    from trtspec.store.team.client import TeamStore

log = logging.getLogger(__name__)

CONNECT_S, START_S, PROBE_S, CALL_S = 5.0, 60.0, 90.0, 30.0
STOP_S = 10.0  # for steps to clean up, before their processes are killed
REPORT_S = 0.5  # between two reports of a step's progress
OBJECT_STORE_BYTES = 100 << 20  # outputs move through the store: results are a few hundred bytes
LOOPBACK = "127.0.0.1"
REMOTE, MODE = "TRTSPEC_REMOTE", "TRTSPEC_REMOTE_MODE"
ACCELERATOR, GPU = "ray.io/accelerator-type", "gpu"  # Ray detects the first; the second is a user's
INTERNAL = "ray.io/"
HEAD = "node:__internal_head__"  # a resource that Ray gives to the head
OWN_NODE_LOST = "Ray's raylet on the machine that drives the build has ended"
AGAIN = "run the same command again: finished steps are cached"

T = TypeVar("T")


@dataclass(frozen=True)
class Site:
    """What a node reports about itself: versions, its store, and whether it sees the driver's store.

    `failure` is why it cannot read the team store, or "".
    """

    version: str
    code: str
    python: str
    store: str
    shares_store: bool
    remote: str
    mode: str
    failure: str


class Board:
    """Actor that collects the progress of running steps between two looks of the driver."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def put(self, event: Event) -> None:
        self._events.append(event)

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def probe(token: str, remote: str) -> Site:
    """Return the facts of the node that runs this task; `token` is a file in the driver's store.

    A node with another store tries to read the team store; `remote` is that of the driver.
    """
    shares, failure = (store_dir() / token).exists(), ""
    if not shares and (team_store := _open_remote(remote)):
        team_store.find({token})
        failure = team_store.failure()
        team_store.resume()
    mode = os.environ.get(MODE, "")
    return Site(
        __version__,
        code_digest(),
        platform.python_version(),
        str(store_dir()),
        shares,
        os.environ.get(REMOTE, ""),
        mode,
        failure,
    )


def _open_remote(remote: str) -> TeamStore | None:
    """Return the team store of this node, which is the driver's unless the node has one."""
    if remote and not os.environ.get(REMOTE):
        os.environ[REMOTE] = remote
    return open_remote()


def attempt(function: Callable[[], T], code: str) -> T | Failure:
    """Return the result of a function in a Ray worker, or the failure if it raises TrtspecError."""
    if code_digest() != code:
        return Failure(f"the node has trtspec {__version__} with other code than this machine", hint=SAME_HINT)
    try:
        return function()
    except TrtspecError as error:
        return Failure(error.message, error.where, error.hint or error.remedy, error.exit_code)


def run_task(step: Step, code: str, remote: str, board: Any, *, hands_over: bool, again: bool) -> Outcome:
    """Run a step in a Ray worker; `code` is the digest of the driver's trtspec, `again` that of the Task."""
    import ray

    die_with_parent(signal.SIGKILL, os.getppid())()  # Ray's raylet; otherwise the step goes on for up to a second
    context = ray.get_runtime_context()
    node = context.get_node_id()
    if code_digest() != code:
        failure = Failure(f"the node has trtspec {__version__} with other code than this machine", hint=SAME_HINT)
        return Outcome("failed", node, failure=failure)
    board.put.remote(Started(step.key, node))
    devices = tuple(context.get_accelerator_ids().get("GPU", ()))
    store = Store(store_dir(), remote=_open_remote(remote))

    def start(total: int) -> SentProgress:
        return SentProgress(step, board.put.remote, REPORT_S)

    if again and store.remote:
        store.remote.distrust(step.key)
    return run_step(step, store, node, start, devices, hands_over=hands_over)


TEAM_HINT = "machines with separate stores hand outputs over through the team store; see docs/fleets.md"
SAME_HINT = f"install the same trtspec ({__version__}) on all nodes, and restart Ray there"


class RayPool(Pool):
    """Runs each step as a Ray task. `cluster` describes the cluster for messages."""

    def __init__(self, ray: Any, cluster: str) -> None:
        self._ray, self._cluster = ray, cluster
        self._remote = _absolute(os.environ.get(REMOTE, ""))
        self._hands_over = False  # whether machines have separate stores
        self._tasks: dict[Any, Task] = {}
        self._queue: list[Task] = []  # exclusive steps that wait for a node
        self._occupied: dict[Any, str] = {}  # nodes of running exclusive steps
        self._nodes: dict[str, Node] = {}
        self._labels: dict[str, dict[str, str]] = {}  # as Ray has them
        self._board: Any = None
        self._head = ""  # the id of the head node
        self._run = ray.remote(max_retries=0)(run_task)
        self._look: Any = None
        self._looked_at = 0.0
        is_client = ray.util.client.ray.is_connected()
        self._own = "" if is_client else ray.get_runtime_context().get_node_id()  # the node of the driver

    def prepare(self) -> None:
        """Check the code and the stores of the nodes; see Pool."""
        if self._board is None:
            self._check_sites()
            self._board = self._start_board()

    def nodes(self) -> list[Node]:
        """Return the living nodes with a processor for steps; raises TrtspecError if the driver's own one is lost.

        Ray 2.60 then reports no running task as lost.
        """
        found = _bounded(self._ray.nodes, CALL_S, f"{self._cluster} does not respond")
        if any(each["NodeID"] == self._own and not each["Alive"] for each in found):
            raise TrtspecError(OWN_NODE_LOST, where=self._cluster, hint=AGAIN)
        self._head = next((each["NodeID"] for each in found if each["Alive"] and HEAD in each["Resources"]), "")
        living = [each for each in found if each["Alive"] and each["Resources"].get("CPU", 0) >= 1]
        hosts = [each["NodeManagerHostname"] for each in living]
        self._nodes, self._labels = {}, {}
        for each in living:
            host, identity = each["NodeManagerHostname"], each["NodeID"]
            name = host if hosts.count(host) == 1 else f"{host}-{identity[:6]}"
            raw, resources = each.get("Labels", {}), each["Resources"]
            labels = {label: value for label, value in raw.items() if not label.startswith(INTERNAL)}
            if kind := raw.get(ACCELERATOR):
                labels.setdefault(GPU, kind.lower())
            self._labels[identity] = raw
            self._nodes[identity] = Node(name, labels, int(resources["CPU"]), int(resources.get("GPU", 0)))
        return list(self._nodes.values())

    def _start_board(self) -> Any:
        """Start the board on the head node, if that is alive: with another node, reports could be lost."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        board = self._ray.remote(num_cpus=0, max_restarts=-1)(Board)
        if self._head:
            board = board.options(scheduling_strategy=NodeAffinitySchedulingStrategy(self._head, soft=True))
        return board.remote()

    def submit(self, task: Task) -> None:
        if task.requirement.exclusive:
            self._queue.append(task)
            self._dispatch()
            return
        self._send(task, num_cpus=1, num_gpus=task.requirement.devices, label_selector=self._selector(task))

    def _dispatch(self) -> None:
        """Send each waiting exclusive step to a node that fits and does not run another one."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        for task in list(self._queue):
            free = [key for key in self._nodes if key not in self._occupied.values()]
            if identity := next((key for key in free if not self._nodes[key].lacks(task.requirement)), ""):
                node, only = self._nodes[identity], NodeAffinitySchedulingStrategy(identity, soft=False)
                self._queue.remove(task)
                ref = self._send(task, num_cpus=node.slots, num_gpus=node.devices, scheduling_strategy=only)
                self._occupied[ref] = identity

    def _send(self, task: Task, **options: Any) -> Any:
        ref = self._run.options(**options).remote(
            task.step, code_digest(), self._remote, self._board, hands_over=self._hands_over, again=task.again
        )
        self._tasks[ref] = task
        return ref

    def wait(self, timeout_s: float) -> Sequence[Event]:
        self._dispatch()
        with _explain_lost_connection(self._cluster):
            if not (refs := [*self._tasks, *self._board_look()]):
                time.sleep(min(timeout_s, REPORT_S))
                return []
            self._ray.wait(refs, num_returns=1, timeout=timeout_s)
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
            events = [event for ref in ready for event in self._receive(ref)]
        # Progress may arrive after the end of its step.
        return sorted(events, key=lambda event: isinstance(event, Finished | Lost))

    def call(self, function: Callable[[], T], requirement: Requirement) -> dict[str, T]:
        """Return the result of a function by the name of each node that fits; see Pool."""
        if not self._nodes:
            self.nodes()
        keys = [key for key, node in self._nodes.items() if not node.lacks(requirement)]
        found: dict[str, T] = {}
        for key, result in self._call_on(keys, partial(attempt, function, code_digest())).items():
            if isinstance(result, Failure):
                raise TrtspecError(f"{self._name(key)}: {result.message}", where=result.where, hint=result.hint)
            found[self._name(key)] = result
        return found

    def cancel(self, key: str) -> None:
        self._queue = [task for task in self._queue if task.step.key != key]
        for ref in [ref for ref, task in self._tasks.items() if task.step.key == key]:
            del self._tasks[ref]
            self._occupied.pop(ref, None)
            _bounded(partial(self._ray.cancel, ref, force=True), CALL_S, f"{self._cluster} does not respond")

    def close(self) -> None:
        """Interrupt running steps so that they clean up, then disconnect, which kills what still runs."""
        refs, self._tasks, self._queue = list(self._tasks), {}, []
        try:
            _bounded(lambda: self._stop(refs), 2 * STOP_S, "")
        except TrtspecError:
            log.info("%s: steps were not stopped in time", self._cluster)
        try:
            _bounded(self._ray.shutdown, CALL_S, "")
        except TrtspecError:
            log.info("%s: no orderly end of the connection", self._cluster)

    def _stop(self, refs: list[Any]) -> None:
        for ref in refs:
            self._ray.cancel(ref, force=False)
        if refs:
            _, running = self._ray.wait(refs, num_returns=len(refs), timeout=STOP_S)
            for ref in running:
                self._ray.cancel(ref, force=True)

    def _selector(self, task: Task) -> dict[str, str]:
        """Return the labels that Ray matches: the user's, or for a GPU's kind those that Ray detected."""
        wanted = dict(task.requirement.labels)
        fitting = next((key for key, node in self._nodes.items() if not node.lacks(task.requirement)), "")
        raw = self._labels.get(fitting, {})
        if GPU in wanted and GPU not in raw and ACCELERATOR in raw:
            del wanted[GPU]
            wanted[ACCELERATOR] = raw[ACCELERATOR]
        return wanted

    def _board_look(self) -> list[Any]:
        if self._look is None and time.monotonic() - self._looked_at >= REPORT_S:
            self._look, self._looked_at = self._board.take.remote(), time.monotonic()
        return [self._look] if self._look is not None else []

    def _receive(self, ref: Any) -> list[Event]:
        if ref == self._look:
            return self._progress()
        task, identity = self._tasks.pop(ref), self._occupied.pop(ref, "")
        key, errors = task.step.key, self._ray.exceptions
        try:
            outcome = self._ray.get(ref, timeout=CALL_S)
        except errors.TaskCancelledError:
            return [Lost(key, "the cluster", "the task was cancelled")]
        except errors.RayTaskError as error:
            return [Finished(key, Outcome("failed", "the cluster", failure=_import_failure(error)))]
        except errors.LocalRayletDiedError:  # of the driver: every further task would be lost at once
            raise
        except errors.RayError as error:
            self._nodes.pop(identity, None)  # not again before the next look at the nodes
            return [Lost(key, "a node", _first_line(error))]
        return [Finished(key, replace(outcome, node=self._name(outcome.node)))]

    def _progress(self) -> list[Event]:
        look, self._look = self._look, None
        try:
            events = self._ray.get(look, timeout=CALL_S)
        except self._ray.exceptions.RayError:  # its node was lost; Ray starts it elsewhere
            return []
        running = {task.step.key for task in self._tasks.values()}
        named = [replace(each, node=self._name(each.node)) if isinstance(each, Started) else each for each in events]
        return [each for each in named if each.key in running]

    def _name(self, identity: str) -> str:
        if identity not in self._nodes:
            self.nodes()
        return self._nodes[identity].name if identity in self._nodes else identity[:8]

    def _check_sites(self) -> None:
        """Raise TrtspecError for nodes that cannot take part, because of their code or their store."""
        nodes = self.nodes()
        sites = self._probe_sites()
        names = {identity: node.name for identity, node in self._nodes.items()}
        if nodes and not sites:
            raise TrtspecError(f"no node of {self._cluster} answered within {PROBE_S:.0f} s", hint=AGAIN)
        differing = [
            f"{names.get(key, key)} has trtspec {site.version}" + (" with other code" * (site.version == __version__))
            for key, site in sites.items()
            if site.code != code_digest()
        ]
        if differing:
            message = f"this machine has trtspec {__version__}, but {'; '.join(differing)}"
            raise TrtspecError(message, where=self._cluster, hint=SAME_HINT)
        apart = [names.get(key, key) for key, site in sites.items() if not site.shares_store]
        self._hands_over = bool(apart) or not sites  # nodes that join later may have their own
        if apart and not (self._remote or all(site.remote for site in sites.values())):
            raise TrtspecError(
                f"{', '.join(sorted(apart)[:5])}: the store is not this machine's {store_dir()}",
                where=self._cluster,
                hint=f"set {REMOTE} to a store that all machines reach, or TRTSPEC_CACHE to a directory that all mount",
            )
        failures = {names.get(key, key): site.failure for key, site in sites.items() if site.failure}
        if failures:
            name, failure = min(failures.items())
            raise TrtspecError(f"{name} cannot use the team store: {failure}", where=self._cluster, hint=TEAM_HINT)
        modes = {names.get(key, key): site.mode for key, site in sites.items() if site.mode not in ("", "read-write")}
        if self._hands_over and modes:
            name, mode = min(modes.items())
            message = f"{name} has {MODE}={mode}, but hands its outputs over through the team store"
            raise TrtspecError(message, where=self._cluster, hint=f"start Ray there without {MODE}")

    def _probe_sites(self) -> dict[str, Site]:
        """Return the facts of each node by its id, of those that answer within PROBE_S."""
        token, root = f"fleet-{secrets.token_hex(8)}", store_dir()
        root.mkdir(parents=True, exist_ok=True)
        (root / token).touch()
        try:
            return self._call_on(list(self._nodes), partial(probe, token, self._remote))
        finally:
            (root / token).unlink(missing_ok=True)

    def _call_on(self, identities: Sequence[str], function: Callable[[], T]) -> dict[str, T]:
        """Return the result of a function by node id, of the nodes that answer within PROBE_S."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task = self._ray.remote(num_cpus=0, max_retries=0)(call)
        refs = {
            task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(key, soft=False)).remote(function): key
            for key in identities
        }
        ready, _ = self._ray.wait(list(refs), num_returns=len(refs), timeout=PROBE_S) if refs else ([], [])
        found: dict[str, T] = {}
        for ref in ready:
            try:
                found[refs[ref]] = self._ray.get(ref, timeout=CALL_S)
            except self._ray.exceptions.RayTaskError as error:
                failure = _import_failure(error)
                raise TrtspecError(failure.message, where=self._cluster, hint=failure.hint) from None
            except self._ray.exceptions.RayError as error:
                log.info("%s was lost: %s", refs[ref], _first_line(error))
        return found


def call(function: Callable[[], T]) -> T:
    """Call a function in a Ray worker."""
    return function()


def _absolute(remote: str) -> str:
    """Return the address of a team store for workers, whose working directory is another one."""
    return f"file:{os.path.abspath(remote[5:])}" if remote.startswith("file:") else remote


def _import_failure(error: Exception) -> Failure:
    """Return the failure for a task that did not reach trtspec's code, or that failed in Ray."""
    text = str(error)
    if "No module named 'trtspec" in text or "ModuleNotFoundError" in text:
        return Failure("a node has no trtspec, or not all of its packages", hint=SAME_HINT, exit_code=1)
    return Failure(f"Ray: {text.strip().splitlines()[-1]}", exit_code=1)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def _explain_lost_connection(cluster: str) -> Iterator[None]:
    """Context manager that turns a lost connection into a TrtspecError."""
    import ray

    try:
        yield
    except ray.exceptions.LocalRayletDiedError:
        raise TrtspecError(OWN_NODE_LOST, where=cluster, hint=AGAIN) from None
    except (ConnectionError, ray.exceptions.RaySystemError, ray.exceptions.RpcError) as error:
        message = f"the connection was lost: {_first_line(error)}"
        raise TrtspecError(message, where=cluster, hint=AGAIN) from None


def _bounded(call: Callable[[], T], timeout_s: float, message: str) -> T:
    """Return the result of `call`; raise TrtspecError with `message` if it takes longer than `timeout_s`."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if errors:
        raise errors[0]
    if not results:
        raise TrtspecError(f"{message} (after {timeout_s:.0f} s)", hint=AGAIN)
    return results[0]


def _open(options: PoolOptions) -> RayPool:
    """Connect to a cluster, or start one on this machine; raise TrtspecError if that fails."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_enable_metrics_collection", "0")
    address = options.address
    if not address:
        # The first is read by Ray on Linux too, and only at its import: without it Ray listens on all interfaces.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError:
        raise TrtspecError("--on ray requires Ray", hint="pip install 'trtspec[ray]'") from None
    logging.getLogger("ray").setLevel(logging.ERROR)
    arguments: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": False}
    if not address:
        cluster = "the local Ray cluster"
        arguments |= {"address": "local", "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        arguments |= {"_node_ip_address": LOOPBACK}
    else:
        cluster = f"ray:{address}"
        _reach(address.removeprefix("//"), cluster)
        arguments |= {"address": f"ray:{address}" if address.startswith("//") else address}
        if address.startswith("127."):  # by this address the driver finds its node, which is on this machine
            arguments |= {"_node_ip_address": address.rpartition(":")[0]}
    _connect(ray, arguments, cluster, starts=not address)
    try:
        return RayPool(ray, cluster)
    except BaseException:
        ray.shutdown()
        raise


def _connect(ray: Any, arguments: dict[str, Any], cluster: str, *, starts: bool) -> None:
    """Call ray.init with a deadline; raise TrtspecError if it fails.

    A local cluster is started in this thread, where Ray has its own deadline, because the processes of the cluster end
    with the thread that started them.
    """
    try:
        if starts:
            ray.init(**arguments)
        else:
            _bounded(partial(ray.init, **arguments), START_S, f"{cluster} does not answer as Ray does")
    except TrtspecError:
        raise
    except Exception as error:  # Ray raises plain exceptions
        here = f"this machine has Ray {ray.__version__} and Python {platform.python_version()}"
        hint = "Ray's logs are in /tmp/ray/session_latest/logs" if starts else f"{here}: the cluster needs both"
        raise TrtspecError(f"no connection: {_first_line(error)}", where=cluster, hint=hint) from None


def _reach(address: str, cluster: str) -> None:
    """Raise TrtspecError unless a server listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise TrtspecError(f"--on {cluster}: expected HOST:PORT", hint="e.g. --on ray://head:10001 or ray:head:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        hint = "10001 is the usual port of ray://, 6379 that of ray:HOST:PORT"
        raise TrtspecError(f"nothing listens there: {error}", where=cluster, hint=hint) from None


POOL = PoolKind("a Ray cluster", _open, is_remote=True)
