# SPDX-License-Identifier: Apache-2.0
"""Real S3 servers on 127.0.0.1, installed by `make s3`: OpenStack Swift with its S3 API, and rclone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.store.registries.real import free_port, wait_until_listening

INSTALLED = Path(os.environ.get("ENGINES", Path(__file__).parents[3])) / ".s3" / "bin"
USER, SECRET = "test:tester", "secret-of-the-tests"
KINDS = ("account", "container", "object")
SERVER = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
swift_dir = {root}/etc
devices = {root}/devices
mount_check = false
fallocate_reserve = 0
log_level = ERROR
"""
BACKEND = """[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
PROXY = """[pipeline:main]
pipeline = catch_errors cache listing_formats s3api tempauth bulk slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
s3_acl = false
auth_pipeline_check = false
min_segment_size = 1
[filter:tempauth]
use = egg:swift#tempauth
user_{user} = {secret} .admin
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
"""
CLUSTER = """[swift-hash]
swift_hash_path_suffix = tests
[storage-policy:0]
name = default
default = yes
"""
RINGS = """
import sys
from swift.common.ring import RingBuilder
for argument in sys.argv[2:]:
    kind, port = argument.split("=")
    ring = RingBuilder(1, 1, 0)
    place = {"region": 1, "zone": 1, "weight": 1, "device": "d1", "meta": ""}
    address = {"ip": "127.0.0.1", "port": int(port), "replication_ip": "127.0.0.1", "replication_port": int(port)}
    ring.add_dev({**place, **address})
    ring.rebalance()
    ring.get_ring().save(f"{sys.argv[1]}/etc/{kind}.ring.gz")
"""


def installed(name: str) -> str:
    """Return the path of a program; skip the test if it is not installed."""
    path = INSTALLED / name
    return str(path) if path.is_file() else pytest.skip(f"no {name} here: make s3")


@contextmanager
def running_swift(root: Path) -> Iterator[str]:
    """Run a Swift cluster of one device below `root`, which is deleted at the end; provide its S3 address."""
    programs = {kind: installed(f"swift-{kind}-server") for kind in (*KINDS, "proxy")}
    ports = {kind: free_port() for kind in programs}
    for folder in ("etc", "devices/d1"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "etc" / "swift.conf").write_text(CLUSTER)
    for kind in KINDS:
        text = SERVER.format(port=ports[kind], root=root) + BACKEND.format(kind=kind)
        (root / "etc" / f"{kind}.conf").write_text(text)
    user = USER.replace(":", "_")
    (root / "etc" / "proxy.conf").write_text(
        SERVER.format(port=ports["proxy"], root=root) + PROXY.format(user=user, secret=SECRET)
    )
    rings = [f"{kind}={ports[kind]}" for kind in KINDS]
    subprocess.run([installed("python"), "-c", RINGS, str(root), *rings], check=True, timeout=120)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        commands = {kind: [program, str(root / "etc" / f"{kind}.conf")] for kind, program in programs.items()}
        started = [stack.enter_context(_running(command, root / f"{kind}.log")) for kind, command in commands.items()]
        for kind, process in zip(commands, started, strict=True):
            wait_until_listening(process, ports[kind], root / f"{kind}.log")
        yield f"http://127.0.0.1:{ports['proxy']}"


@contextmanager
def running_rclone(root: Path) -> Iterator[str]:
    """Run rclone's S3 server on the directory `root`; provide its address. `root` is deleted at the end."""
    program, port = installed("rclone"), free_port()
    root.mkdir(parents=True, exist_ok=True)
    arguments = ["serve", "s3", "--config", os.devnull, "--addr", f"127.0.0.1:{port}", "--auth-key", f"{USER},{SECRET}"]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        process = stack.enter_context(_running([program, *arguments, str(root)], root.with_suffix(".log")))
        wait_until_listening(process, port, root.with_suffix(".log"))
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def rclone(endpoint: str, *arguments: str) -> str:
    """Run rclone as a client of an S3 server, which is its remote `s3:`; return its output."""
    variables = {
        "RCLONE_CONFIG_S3_TYPE": "s3",
        "RCLONE_CONFIG_S3_PROVIDER": "Other",
        "RCLONE_CONFIG_S3_ENDPOINT": endpoint,
        "RCLONE_CONFIG_S3_ACCESS_KEY_ID": USER,
        "RCLONE_CONFIG_S3_SECRET_ACCESS_KEY": SECRET,
    }
    done = subprocess.run(
        [installed("rclone"), "--config", os.devnull, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
