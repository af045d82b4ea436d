"""Holds a node to docs/openapi.yaml: whatever is sent, the answer is one the document describes.

1. A node of its own is started, and made to hold what the document's examples name.
2. For every operation schemathesis makes requests: the examples, the edges of every parameter and
   body, and random ones, valid and not, most of which `schema_world` aims at what exists.
3. Each is signed and sent. Status, headers, content type and body of the answer must stand in the
   document; a 5xx must be a 501 that stands there; an answer must come; the node must live.
4. Every success that the document promises must have been seen: else the requests were no good.

    EPHEMERIS_BIN=… python -m pytest cluster-tests/python/schema_test.py

`SEED` makes other requests, `EXAMPLES` more random ones, `OPERATION` only those of one operation.
What fails is told with the request, as a command that sends it, and with the command that runs the
operation's test again: the same seed makes the same requests.
"""

import os
import shlex
import shutil
import socket
import subprocess
import urllib.parse
from collections import defaultdict
from pathlib import Path

import pytest
import requests
import schemathesis
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import cluster
from schema_world import LAST_ETAG, PRICED, WORLD, kinds_of, steered

SEED = int(os.environ.get("SEED", "1"))
EXAMPLES = int(os.environ.get("EXAMPLES", "15"))
OPERATION = os.environ.get("OPERATION")
ITEMS_POST = "POST /dbs/{database}/colls/{container}/docs"
# Longer than a request may take, and a body to arrive: whoever waits longer has been forgotten.
ANSWER_SECONDS_MAX = 40
# A lone node has no other to forget.
NEVER_SEEN = {("POST /admin/forget-node", 200)}

# POST …/docs is many kinds of request in one.
OPERATIONS = [
    {"include-name": ITEMS_POST, "generation": {"max-examples": 10 * EXAMPLES}},
]
if OPERATION:
    OPERATIONS.append({"exclude-name": OPERATION, "enabled": False})
CONFIG = schemathesis.Config.from_dict(
    {
        "seed": SEED,
        "generation": {
            "max-examples": EXAMPLES,
            "database": "none",
            "with-security-parameters": False,
        },
        "operations": OPERATIONS,
        "checks": {"not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "501"]}},
    }
)
DOCUMENT = schemathesis.openapi.from_path(cluster.ROOT / "docs" / "openapi.yaml", config=CONFIG)


class Signature(requests.auth.AuthBase):
    """Signs a request as it finally is."""

    def __call__(self, request):
        path = urllib.parse.urlsplit(request.url).path
        segments = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        request.headers.update(cluster.signed(request.method, segments))
        return request


class Node:
    """A process with an empty directory, for this test alone."""

    def __init__(self, directory):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
        self.url = f"http://{address}"
        self.log = directory / "node.log"
        binary = os.environ.get("EPHEMERIS_BIN") or shutil.which("ephemeris")
        assert binary, "set EPHEMERIS_BIN to the path of the ephemeris binary"
        command = [binary, "start-single-node", "--data-dir", directory / "data", "--http", address]
        # Clients may ask for this level and every other.
        command += ["--consistency", "Strong"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("EPHEMERIS_")}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.session = requests.Session()
        self.session.auth = Signature()
        self.session.trust_env = False
        # The etag that each path was last answered with.
        self.etags = {}
        # How often each operation was answered with each status.
        self.seen = defaultdict(lambda: defaultdict(int))

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)

    def make(self, world):
        for method, path, body, headers in world:
            answer = self.session.request(
                method, self.url + path, json=body, headers=headers, timeout=ANSWER_SECONDS_MAX
            )
            assert answer.status_code in (200, 201, 409), f"{method} {path}: {answer.text}"

    def mend(self, case, answer):
        """Undoes what a request did that others would notice."""
        path, status = case.formatted_path.rstrip("/"), answer.status_code
        if case.method == "POST" and status == 201 and path in ("/dbs", "/dbs/shop/colls"):
            # Not by its name, which may be "..".
            url = f"{self.url}/{answer.json()['_self'].rstrip('/')}"
            assert self.session.delete(url, timeout=ANSWER_SECONDS_MAX).status_code == 204
        destroys = case.method in ("PUT", "DELETE") or path.endswith("/partitionkeydelete")
        if destroys and status in (200, 204):
            self.make(WORLD)


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    node = Node(tmp_path_factory.mktemp("node"))
    try:
        cluster.wait_ready(node.url)
        node.make(PRICED + WORLD)
        yield node
    finally:
        node.stop()


def test_the_document_is_openapi():
    DOCUMENT.validate()


@DOCUMENT.hook
def before_generate_case(context, strategy):
    return steered(strategy)


@DOCUMENT.hook
def before_add_examples(context, examples):
    examples[:] = [kind for case in examples for kind in kinds_of(case)]


@DOCUMENT.parametrize()
def test_every_answer_is_documented(case, node):
    for name in ("if-match", "if-none-match"):
        if case.headers.get(name) == LAST_ETAG:
            case.headers[name] = node.etags.get(case.formatted_path, "*")
    try:
        answer = case.call(base_url=node.url, session=node.session, timeout=ANSWER_SECONDS_MAX)
    except requests.RequestException as error:
        tell(case, error.request)
        raise
    node.seen[case.operation.label][answer.status_code] += 1
    if "etag" in answer.headers:
        node.etags[case.formatted_path] = answer.headers["etag"][0]
    try:
        check(case, answer)
    except BaseException:
        tell(case, answer.request)
        raise
    finally:
        node.mend(case, answer)


def test_every_success_was_seen(node):
    wanting = [
        f"{operation}: no {status}"
        for operation, seen in node.seen.items()
        for status in promised(operation)
        if status not in seen and (operation, status) not in NEVER_SEEN
    ]
    for operation, seen in node.seen.items():
        print(operation, dict(sorted(seen.items())))
    assert not wanting, "\n".join(wanting)


def test_the_node_lives_and_has_not_panicked(node):
    log = node.log.read_text()
    assert node.process.poll() is None and "panicked" not in log, log


def test_what_is_not_signed_is_401(node):
    for operation in DOCUMENT.get_all_operations():
        operation = operation.ok()
        if operation.definition.raw.get("security") == []:
            continue
        path = operation.path.replace("{", "").replace("}", "")
        answer = requests.request(operation.method, node.url + path, timeout=ANSWER_SECONDS_MAX)
        assert answer.status_code == 401, operation.label


def check(case, answer):
    """The answer must be one that the document has for this operation, if it is signed."""
    if case.method.upper() != case.operation.method.upper():
        # What is wrong with its headers may be told first.
        assert answer.status_code in (400, 405, 501), "the path does not have this method"
        if answer.status_code == 405:
            assert case.method.upper() not in answer.headers["allow"][0].split(", "), "it has this one"
        return
    assert answer.status_code != 401, "the request was signed"
    checks = [not_a_server_error, status_code_conformance, response_headers_conformance]
    if answer.content:
        checks += [content_type_conformance, response_schema_conformance]
    else:
        assert may_be_empty(case, answer.status_code), "the answer has no body"
    case.validate_response(answer, checks=checks)
    if answer.status_code == 207:
        assert all(row["statusCode"] < 500 for row in answer.json()), "an operation met with a fault"


def may_be_empty(case, status):
    described = case.operation.responses.find_by_status_code(status)
    minimal = case.headers.get("prefer") == "return=minimal"
    return described is None or minimal or "content" not in described.definition


def promised(label):
    """The statuses of an operation that are no errors."""
    method, path = label.split(" ")
    statuses = map(int, DOCUMENT[path][method].responses.status_codes)
    return [status for status in statuses if status < 400]


def tell(case, request):
    """Prints how to send a request again, and how to run its test again."""
    path = urllib.parse.urlsplit(request.url)._replace(scheme="", netloc="").geturl()
    command = ["ephemeris", "request", request.method, shlex.quote(path), "--include"]
    own = {*requests.utils.default_headers(), *cluster.signed("", ["", ""])}
    own |= {"Content-Length", "X-Schemathesis-TestCaseId"}
    for name, value in request.headers.items():
        if name not in own:
            value = value.decode("latin-1") if isinstance(value, bytes) else value
            command += ["--header", shlex.quote(f"{name}: {value}")]
    if request.body is not None:
        body = request.body if isinstance(request.body, str) else request.body.decode("latin-1")
        command += ["--body", shlex.quote(body)]
    operation = shlex.quote(case.operation.label)
    print("\nThe request:", " ".join(command))
    print(
        f"The test: SEED={SEED} EXAMPLES={EXAMPLES} OPERATION={operation}"
        f" python -m pytest {Path(__file__).relative_to(cluster.ROOT)}"
    )
