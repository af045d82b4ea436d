"""Finds, kills and starts the nodes of a running cluster: containers of docker-compose.yml, or
processes on this machine where Docker does not run.

`python cluster.py up DIRECTORY BINARY` starts three processes that keep everything in DIRECTORY,
`python cluster.py down DIRECTORY` ends them.
"""

import argparse
import base64
import hashlib
import hmac
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from email.utils import formatdate
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
URL = os.environ.get("EPHEMERIS_URL", "http://127.0.0.1:8081").rstrip("/")
KEY = os.environ.get("EPHEMERIS_KEY") or (
    "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="
)
# Where a cluster of processes lives; unset, there may be one of containers.
DIRECTORY = os.environ.get("EPHEMERIS_LOCAL_CLUSTER")
READY_SECONDS_MAX = 60


class Cluster:
    """A running cluster whose nodes can be killed. `urls` maps a node's number to its URL."""

    urls: dict[int, str]

    def kill(self, node):
        """Ends a node as a power cut would."""
        raise NotImplementedError

    def start(self, node):
        """Starts a node that was killed, without waiting for it."""
        raise NotImplementedError

    def status(self):
        """What the first node that answers says of nodes, groups and leaders."""
        for url in self.urls.values():
            try:
                return admin_status(url)
            except OSError:
                continue
        raise OSError("no node answers")

    def leader(self, database, container):
        """The number of the node that leads the container's (first) partition."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            for group in self.status()["groups"]:
                of = group["of"]
                named = isinstance(of, dict) and (of["database"], of["container"])
                if named == (database, container) and group["leader"]:
                    return group["leader"]
            time.sleep(0.05)
        raise TimeoutError(f"nobody leads {database}/{container}")

    def wait_ready(self):
        """Waits until every node says it is ready."""
        for url in self.urls.values():
            wait_ready(url)

    def wait_level(self):
        """Waits until every replica has what its leader has.

        At Session, whoever has seen nothing may be answered by one that has not yet.
        """
        deadline = time.monotonic() + READY_SECONDS_MAX
        lags = [None]
        while time.monotonic() < deadline:
            groups = self.status()["groups"]
            lags = [replica["lag"] for group in groups for replica in group["replicas"]]
            if all(lag == 0 for lag in lags):
                return
            time.sleep(0.05)
        raise TimeoutError(f"replicas lag by {lags}")


class ComposeCluster(Cluster):
    """The containers that docker-compose started for this checkout."""

    def __init__(self, containers):
        self.containers = containers
        self.urls = {node: published_url(container) for node, container in containers.items()}

    @classmethod
    def find(cls):
        """The cluster of this checkout, if it runs."""
        if not shutil.which("docker"):
            return None
        format_ = '{{.ID}} {{.Label "com.docker.compose.service"}}'
        label = f"label=com.docker.compose.project.working_dir={ROOT}"
        lines = docker("ps", "--filter", label, "--format", format_, check=False).splitlines()
        found = dict(reversed(line.split()) for line in lines)
        containers = {int(name[1:]): id_ for name, id_ in sorted(found.items())}
        return cls(containers) if containers else None

    def kill(self, node):
        docker("kill", self.containers[node])

    def start(self, node):
        docker("start", self.containers[node])


class LocalCluster(Cluster):
    """Processes on this machine, described by the file cluster.json."""

    def __init__(self, directory):
        self.file = Path(directory) / "cluster.json"
        self.nodes = {node["node"]: node for node in json.loads(self.file.read_text())}
        self.urls = {number: node["url"] for number, node in self.nodes.items()}

    def kill(self, node):
        self.signal(node, signal.SIGKILL)

    def stop(self, node):
        self.signal(node, signal.SIGTERM)

    def signal(self, node, number):
        process = self.nodes[node]["pid"]
        try:
            os.kill(process, number)
        except ProcessLookupError:
            return
        # The process may be our child or somebody else's.
        while is_running(process):
            time.sleep(0.01)

    def start(self, node):
        description = self.nodes[node]
        with open(description["log"], "ab") as log:
            process = subprocess.Popen(
                description["command"], stdout=log, stderr=log, start_new_session=True
            )
        description["pid"] = process.pid
        self.file.write_text(json.dumps(list(self.nodes.values()), indent=2))


def connect():
    """The cluster to test, or None if there is only a URL."""
    if DIRECTORY:
        return LocalCluster(DIRECTORY)
    return ComposeCluster.find()


def docker(*arguments, check=True):
    command = ["docker", *arguments]
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout


def published_url(container):
    """Where the host reaches the container's port for clients."""
    return "http://" + docker("port", container, "8081/tcp").split()[0]


def admin_status(url):
    headers = signed("GET", ["admin", "status"])
    request = urllib.request.Request(url + "/admin/status", headers=headers)
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.load(answer)


def signed(method, segments):
    """The headers that sign a request, given its path's segments, decoded."""
    if len(segments) == 6 and segments[4:] == ["operations", "partitionkeydelete"]:
        kind, link = "colls", segments[:4]
    elif len(segments) % 2 == 1:
        kind, link = segments[-1], segments[:-1]
    else:
        kind, link = segments[-2], segments
    date = formatdate(usegmt=True)
    text = f"{method.lower()}\n{kind}\n{'/'.join(link)}\n{date.lower()}\n\n"
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    token = f"type=master&ver=1.0&sig={base64.b64encode(digest).decode()}"
    return {"authorization": urllib.request.quote(token, safe=""), "x-ms-date": date}


def wait_ready(url):
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url + "/readyz", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise TimeoutError(f"{url} is not ready after {READY_SECONDS_MAX} s")


def is_running(process):
    try:
        os.waitpid(process, os.WNOHANG)
    except ChildProcessError:
        pass
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def up(directory, binary):
    directory = Path(directory).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    peers = ",".join(f"{node}=127.0.0.1:{7000 + node}" for node in (1, 2, 3))
    nodes = []
    for node in (1, 2, 3):
        http = f"127.0.0.1:{8080 + node}"
        command = [str(Path(binary).resolve()), "start", "--node-id", str(node), "--http", http]
        command += ["--peer", f"127.0.0.1:{7000 + node}", "--cluster", peers]
        command += ["--data-dir", str(directory / f"n{node}"), "--advertise", f"http://{http}/"]
        log = str(directory / f"n{node}.log")
        description = {"node": node, "url": f"http://{http}", "command": command, "log": log}
        nodes.append(description | {"pid": None})
    (directory / "cluster.json").write_text(json.dumps(nodes))
    cluster = LocalCluster(directory)
    for node in cluster.urls:
        cluster.start(node)
    cluster.wait_ready()


def down(directory):
    cluster = LocalCluster(directory)
    for node in cluster.urls:
        cluster.stop(node)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    starts = commands.add_parser("up", help="start three processes")
    starts.add_argument("directory")
    starts.add_argument("binary")
    ends = commands.add_parser("down", help="end them")
    ends.add_argument("directory")
    commands.add_parser("wait", help="wait until every node of the running cluster is ready")
    options = parser.parse_args()
    if options.command == "up":
        up(options.directory, options.binary)
    elif options.command == "down":
        down(options.directory)
    else:
        cluster = connect() or sys.exit("no cluster of this checkout runs")
        cluster.wait_ready()


if __name__ == "__main__":
    main()
