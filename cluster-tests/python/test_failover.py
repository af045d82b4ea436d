"""What users of the unmodified azure-cosmos SDK see while a leader is killed under them."""

import json
import threading
import time
import urllib.request
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from azure.core.exceptions import AzureError
from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.exceptions import CosmosHttpResponseError, CosmosResourceNotFoundError

import cluster
from conftest import LOCATIONS, connect

WRITERS = 4
# Calls that must be acknowledged before a leader is killed, and again before it is started.
CALLS = 100


@contextmanager
def leader_killed(nodes, container):
    """The node that leads a container is dead meanwhile; answers its number."""
    leader = nodes.leader(*names_of(container))
    nodes.kill(leader)
    try:
        yield leader
    finally:
        nodes.start(leader)
        nodes.wait_ready()


class Load:
    """Calls `attempt(writer, number)` on some threads, with numbers that go up, and keeps a journal."""

    def __init__(self, attempt):
        self.attempt = attempt
        self.acknowledged = []
        self.failed = []  # surely not executed, or nobody knows
        self.stop = threading.Event()

    def __enter__(self):
        self.pool = ThreadPoolExecutor(WRITERS)
        self.writers = [self.pool.submit(self.write, writer) for writer in range(WRITERS)]
        self.await_more()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.pool.shutdown()
        for writer in self.writers:
            writer.result()

    def write(self, writer):
        number = 0
        while not self.stop.is_set():
            try:
                self.attempt(writer, number)
                self.acknowledged.append((writer, number))
            except (AzureError, OSError):
                self.failed.append((writer, number))
            number += 1

    def await_more(self):
        """Waits until so many more calls are acknowledged: of those under way each thread has one."""
        goal = len(self.acknowledged) + WRITERS + CALLS
        wait_for(lambda: len(self.acknowledged) > goal or self.writers_ended())

    def writers_ended(self):
        return any(writer.done() for writer in self.writers)


def load_through_a_leaders_death(nodes, container, attempt):
    with Load(attempt) as load:
        with leader_killed(nodes, container):
            killed = time.monotonic()
            load.await_more()
            print(f"{CALLS} more calls {time.monotonic() - killed:.2f} s after the leader died")
    print(f"{len(load.acknowledged)} acknowledged, {len(load.failed)} failed")
    nodes.wait_level()
    return load


def wait_for(condition, seconds_max=30):
    deadline = time.monotonic() + seconds_max
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def until_done(attempt):
    """The answer of the first attempt that has one; requests that fail change nothing."""
    answers = []

    def succeeds():
        try:
            answers.append(attempt())
        except AzureError:
            return False
        return True

    wait_for(succeeds)
    return answers[0]


def names_of(container):
    return container.container_link.split("/")[1::2]


def seen_by(url, container):
    """What a node tells of a container, page after page, with a client of its own."""
    database, name = names_of(container)
    with connect(url) as client:
        there = client.get_database_client(database).get_container_client(name)
        return list(there.read_all_items())


def test_no_acknowledged_write_is_lost(make_container, nodes):
    container = make_container()

    def create(writer, number):
        container.create_item({"id": f"{writer}-{number}", "pk": f"p{number % 7}"})

    load = load_through_a_leaders_death(nodes, container, create)
    # The node that was away serves, too.
    for url in nodes.urls.values():
        present = {item["id"] for item in seen_by(url, container)}
        lost = {f"{writer}-{number}" for writer, number in load.acknowledged} - present
        assert not lost, f"{len(lost)} of {len(load.acknowledged)} acknowledged writes are lost"
        assert len(present) <= len(load.acknowledged) + len(load.failed)


def test_a_patch_happens_once_or_never(make_container, nodes):
    container = make_container()
    for writer in range(WRITERS):
        container.create_item({"id": str(writer), "pk": "a", "count": 0})

    def patch(writer, _):
        container.patch_item(str(writer), "a", [{"op": "incr", "path": "/count", "value": 1}])

    load = load_through_a_leaders_death(nodes, container, patch)
    acknowledged = Counter(writer for writer, _ in load.acknowledged)
    failed = Counter(writer for writer, _ in load.failed)
    for item in seen_by(cluster.URL, container):
        writer = int(item["id"])
        low = acknowledged[writer]
        assert low <= item["count"] <= low + failed[writer], f"{acknowledged} {failed} {item}"


def test_a_batch_is_all_or_nothing(make_container, nodes):
    container = make_container()

    def batch(writer, number):
        items = [{"id": f"{writer}-{number}-{half}", "pk": f"{writer}"} for half in "ab"]
        container.execute_item_batch([("create", (item,)) for item in items], f"{writer}")

    load = load_through_a_leaders_death(nodes, container, batch)
    halves = Counter(item["id"].rpartition("-")[0] for item in seen_by(cluster.URL, container))
    assert set(halves.values()) == {2}, "a batch is there by half"
    batches = {f"{writer}-{number}" for writer, number in load.acknowledged}
    assert batches <= set(halves)
    assert len(halves) <= len(load.acknowledged) + len(load.failed)


def test_a_bulk_request_tells_the_truth_of_each_operation(make_container, nodes):
    container = make_container(offer_throughput=12000)  # two partitions
    told = []

    def bulk(writer, number):
        ids = [f"{writer}-{number}-{key}" for key in range(10)]
        statuses = send_bulk(nodes, container, writer + number, ids)
        told.extend(zip(ids, statuses, strict=True))
        if set(statuses) != {201}:
            raise OSError(f"not everything was created: {statuses}")

    load_through_a_leaders_death(nodes, container, bulk)
    present = {item["id"] for item in seen_by(cluster.URL, container)}
    created = {id_ for id_, status in told if status == 201}
    assert created <= present, f"{len(created - present)} of {len(created)} are lost"
    refused = {id_ for id_, status in told if status in (429, 503)}
    assert not refused & present, "some are there, although they were not executed"


def send_bulk(nodes, container, turn, ids):
    """Creates items by a bulk request, which this SDK has not; the status of each."""
    operations = [
        {
            "operationType": "Create",
            "partitionKey": json.dumps([id_]),
            "resourceBody": {"id": id_, "pk": id_},
        }
        for id_ in ids
    ]
    path = container.container_link.split("/") + ["docs"]
    headers = cluster.signed("POST", path) | {
        "content-type": "application/json",
        "x-ms-cosmos-is-batch-request": "True",
        "x-ms-cosmos-batch-atomic": "False",
        "x-ms-cosmos-batch-continue-on-error": "True",
    }
    url = list(nodes.urls.values())[turn % len(nodes.urls)] + "/" + "/".join(path)
    request = urllib.request.Request(url, json.dumps(operations).encode(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return [row["statusCode"] for row in json.load(answer)]


def test_a_change_feed_goes_on_where_it_was(make_container, nodes):
    container = make_container()
    database, name = names_of(container)
    # The tag is found at the client that got it last: no writer uses this one.
    reader = connect().get_database_client(database).get_container_client(name)
    seen, continuation = [], None

    def read_feed():
        nonlocal continuation
        where = {"continuation": continuation} if continuation else {"start_time": "Beginning"}
        for page in reader.query_items_change_feed(max_item_count=50, **where).by_page():
            # A page counts as a whole, together with where it ends.
            rows = [item["id"] for item in page]
            continuation = reader.client_connection.last_response_headers["etag"]
            seen.extend(rows)

    def create(writer, number):
        container.create_item({"id": f"{writer}-{number}", "pk": f"p{number % 7}"})

    with Load(create) as load:
        until_done(read_feed)
        with leader_killed(nodes, container):
            load.await_more()
            until_done(read_feed)
    until_done(read_feed)
    assert len(seen) == len(set(seen)), "the feed has told something twice"
    assert sorted(seen) == sorted(item["id"] for item in seen_by(cluster.URL, container))
    assert {f"{writer}-{number}" for writer, number in load.acknowledged} <= set(seen)


@pytest.mark.parametrize("text", ["SELECT * FROM c", "SELECT * FROM c ORDER BY c.n DESC"])
def test_the_pages_of_a_query_go_on_where_they_were(make_container, nodes, text):
    container = make_container(offer_throughput=12000)  # two partitions
    with ThreadPoolExecutor(WRITERS) as pool:
        items = ({"id": f"{n:03}", "pk": f"p{n % 7}", "n": n} for n in range(100))
        list(pool.map(container.create_item, items))

    def page(continuation):
        pages = container.query_items(
            text, enable_cross_partition_query=True, max_item_count=15
        ).by_page(continuation)
        return [item["n"] for item in next(pages)], pages.continuation_token

    found, continuation = page(None)
    with leader_killed(nodes, container):
        while continuation:
            rows, continuation = until_done(lambda: page(continuation))
            found += rows
    ordered = list(reversed(range(100)))
    assert (found if "ORDER BY" in text else sorted(found, reverse=True)) == ordered


def test_prefixes_of_hierarchical_keys_show_all_that_was_acknowledged(make_container, nodes):
    container = make_container(PartitionKey(["/tenant", "/user"], kind="MultiHash"))

    def create(writer, number):
        container.create_item({"id": str(number), "tenant": f"t{writer}", "user": f"u{number % 5}"})

    load = load_through_a_leaders_death(nodes, container, create)
    for tenant in range(WRITERS):
        found = container.query_items("SELECT * FROM c", partition_key=[f"t{tenant}"])
        present = {int(item["id"]) for item in found}
        acknowledged = {number for writer, number in load.acknowledged if writer == tenant}
        failed = {number for writer, number in load.failed if writer == tenant}
        assert acknowledged <= present <= acknowledged | failed


def test_a_session_reads_its_own_writes(make_container, nodes):
    container = make_container(offer_throughput=12000)  # two partitions

    def write_and_read(writer, number):
        written = {"id": str(writer), "pk": f"p{writer}", "n": number}
        container.upsert_item(written)
        try:
            found = container.read_item(str(writer), f"p{writer}")["n"]
        except CosmosResourceNotFoundError:
            found = None
        if found != number:
            others.append((writer, found, number))

    others = []
    load = load_through_a_leaders_death(nodes, container, write_and_read)
    # A write that has failed may land after the next one.
    stale = [(*found, wanted) for *found, wanted in others if tuple(found) not in load.failed]
    assert not stale, f"a session does not see what it wrote: {stale[:5]}"


def test_the_feed_of_all_versions_tells_each_expiry_once(make_container, nodes):
    mode = "AllVersionsAndDeletes"
    container = make_container(change_feed_policy={"retentionDuration": 10}, default_ttl=-1)
    database, name = names_of(container)
    # The tag is found at the client that got it last: no writer uses this one.
    reader = connect().get_database_client(database).get_container_client(name)

    def read_feed(**where):
        changes = list(reader.query_items_change_feed(mode=mode, **where))
        return changes, reader.client_connection.last_response_headers["etag"]

    def create(writer, number):
        container.create_item({"id": f"{writer}-{number}", "pk": f"p{number % 7}", "ttl": 2})

    _, start = until_done(read_feed)
    load = load_through_a_leaders_death(nodes, container, create)
    created = {f"{writer}-{number}" for writer, number in load.acknowledged}
    ends = Counter()

    def all_have_ended():
        changes, _ = until_done(lambda: read_feed(continuation=start))
        metadata = [change["metadata"] for change in changes]
        expiries = [one for one in metadata if one.get("timeToLiveExpired")]
        ends.clear()
        ends.update(one["id"] for one in expiries)
        assert len(expiries) == sum(one["operationType"] == "delete" for one in metadata)
        return created <= set(ends)

    wait_for(all_have_ended)
    assert set(ends.values()) == {1}, "an expiry was told twice"
    assert len(ends) <= len(load.acknowledged) + len(load.failed)
    wait_for(lambda: not list(container.read_all_items()))


def test_what_is_deleted_with_its_partition_key_stays_away(make_container, nodes):
    container = make_container()
    with ThreadPoolExecutor(WRITERS) as pool:
        items = ({"id": str(n), "pk": f"p{n % 2}"} for n in range(400))
        list(pool.map(container.create_item, items))
    until_done(lambda: container.delete_all_items_by_partition_key("p0"))
    # Removing the rows has hardly begun.
    with leader_killed(nodes, container) as leader:
        alive = next(url for node, url in nodes.urls.items() if node != leader)
        left = until_done(lambda: seen_by(alive, container))
        assert {item["pk"] for item in left} == {"p1"} and len(left) == 200
        until_done(lambda: container.upsert_item({"id": "0", "pk": "p0"}))
    nodes.wait_level()
    for url in nodes.urls.values():
        assert Counter(item["pk"] for item in seen_by(url, container)) == {"p0": 1, "p1": 200}


def offer_of(url, container, request_units=None):
    """What a node tells of a container's offer, after it was replaced if that is asked for."""
    database, name = names_of(container)
    # This SDK sends offers to the node it was told of, and to no other.
    with connect(url) as client:
        there = client.get_database_client(database).get_container_client(name)
        if request_units:
            there.replace_throughput(request_units)
        return there.get_throughput().offer_throughput


def test_an_offer_is_replaced_while_a_leader_is_dead(make_container, nodes):
    container = make_container(offer_throughput=600)
    with leader_killed(nodes, container) as leader:
        alive = next(url for node, url in nodes.urls.items() if node != leader)
        assert until_done(lambda: offer_of(alive, container, 800)) == 800
    assert {offer_of(url, container) for url in nodes.urls.values()} == {800}


def take_away(user):
    """Deletes the permission `p`, unless an attempt before has done so without an answer."""
    try:
        user.delete_permission("p")
    except CosmosResourceNotFoundError:
        pass


def test_a_resource_token_goes_on_and_ends_when_it_is_taken_away(database, container, nodes):
    container.create_item({"id": "a", "pk": "k"})
    user = database.create_user({"id": f"u-{uuid.uuid4()}"})
    definition = {"id": "p", "permissionMode": "All", "resource": container.container_link}
    permission = user.create_permission(definition).properties
    token = {permission["resource"]: permission["_token"]}
    with leader_killed(nodes, container) as leader:
        alive = next(url for node, url in nodes.urls.items() if node != leader)
        bearer = CosmosClient(
            alive, token, multiple_write_locations=True, preferred_locations=LOCATIONS
        )
        database_name, name = names_of(container)
        there = bearer.get_database_client(database_name).get_container_client(name)
        until_done(lambda: there.upsert_item({"id": "b", "pk": "k"}))
        assert until_done(lambda: there.read_item("a", "k"))["id"] == "a"
        with connect(alive) as client:
            taker = client.get_database_client(database_name).get_user_client(user.id)
            until_done(lambda: take_away(taker))
        with pytest.raises(CosmosHttpResponseError) as refused:
            there.read_item("a", "k")
        assert refused.value.status_code == 403
    # Nor does the node honour it that was away when it was taken away.
    with pytest.raises(CosmosHttpResponseError) as refused:
        CosmosClient(nodes.urls[leader], token)
    assert refused.value.status_code == 403
