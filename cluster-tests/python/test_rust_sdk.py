"""What users of the unmodified Rust SDK see: its features, also while a leader is killed under them.

The crate cluster-tests/rust-sdk does the work; it is built outside the checkout.
"""

import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import cluster
from test_failover import leader_killed, names_of

CRATE = cluster.ROOT / "cluster-tests/rust-sdk"
CACHE = Path(os.environ.get("EPHEMERIS_CACHE") or Path.home() / ".cache/ephemeris")
# The first time, all that the SDK needs is compiled.
BUILD_SECONDS_MAX = 1800
TEST_SECONDS_MAX = 400
# More than there are processors: many tests wait for something to expire.
THREADS = 8
TWO_PARTITIONS_RU = 12000

# What a fixture takes is not counted: the build has a deadline of its own.
pytestmark = pytest.mark.timeout(TEST_SECONDS_MAX, func_only=True)


def cargo(command, *arguments):
    """How to start cargo on the crate."""
    return {
        "args": ["cargo", command, "--locked", *arguments],
        "cwd": CRATE,
        "env": dict(os.environ, CARGO_TARGET_DIR=str(CACHE / "rust-sdk/target")),
        "text": True,
    }


@pytest.fixture(scope="module", autouse=True)
def build():
    subprocess.run(**cargo("test", "--no-run"), check=True, timeout=BUILD_SECONDS_MAX)


def test_every_feature():
    options = ["--test", "features", "--", "--test-threads", str(THREADS)]
    subprocess.run(**cargo("test", *options), check=True)


@contextmanager
def load(container):
    """Calls of all kinds on a container, by a process that judges them when it is told to end."""
    command = cargo("run", "--bin", "failover", "--", *names_of(container))
    with subprocess.Popen(**command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(phase, process):
    for line in process.stdout:
        print(line, end="")
        if line.strip() == phase:
            return
    pytest.fail(f"the load has ended before it said: {phase}")


def go_on(process):
    print("go on", file=process.stdin, flush=True)


@pytest.mark.parametrize("throughput", [None, TWO_PARTITIONS_RU], ids=["one", "two"])
def test_nothing_acknowledged_is_lost_with_a_leader(make_container, nodes, throughput):
    container = make_container(
        default_ttl=-1,
        offer_throughput=throughput,
        unique_key_policy={"uniqueKeys": [{"paths": ["/unique"]}]},
    )
    with load(container) as process:
        wait_for("loaded", process)
        with leader_killed(nodes, container):
            killed = time.monotonic()
            go_on(process)
            wait_for("survived", process)
            print(f"every worker went on {time.monotonic() - killed:.2f} s after the leader died")
        go_on(process)
        print(process.stdout.read())
        assert process.wait() == 0
