"""What users of the unmodified azure-cosmos SDK see: the API, and expiry."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from azure.core import MatchConditions
from azure.cosmos import PartitionKey
from azure.cosmos._execution_context import execution_dispatcher
from azure.cosmos.aio import CosmosClient as AsyncCosmosClient
from azure.cosmos.exceptions import (
    CosmosAccessConditionFailedError,
    CosmosBatchOperationError,
    CosmosHttpResponseError,
    CosmosResourceExistsError,
    CosmosResourceNotFoundError,
)
from azure.cosmos.partition_key import NullPartitionKeyValue

import cluster
from conftest import connect

# Nodes and test share one clock; an expired item may still be seen for as long as a read takes.
LATE_SECONDS_MAX = 0.5


# Items


def test_an_item_is_created_read_replaced_and_deleted(container):
    created = container.create_item({"id": "1", "pk": "a", "count": 1, "big": 2**53 - 1})
    assert container.read_item("1", "a") == created
    replaced = container.replace_item("1", {"id": "1", "pk": "a", "count": 2})
    assert (replaced["count"], "big" in replaced) == (2, False)
    assert replaced["_etag"] != created["_etag"]
    assert replaced["_rid"] == created["_rid"]
    assert replaced["_ts"] >= created["_ts"]
    container.delete_item("1", "a")
    with pytest.raises(CosmosResourceNotFoundError):
        container.read_item("1", "a")


def test_what_is_not_there_is_404(container, database):
    for attempt in (
        lambda: container.read_item("no", "a"),
        lambda: container.replace_item("no", {"id": "no", "pk": "a"}),
        lambda: container.delete_item("no", "a"),
        lambda: database.get_container_client("no").read(),
        lambda: database.get_container_client("no").create_item({"id": "1", "pk": "a"}),
    ):
        with pytest.raises(CosmosResourceNotFoundError):
            attempt()


def test_an_id_is_taken_once_per_logical_partition(container):
    container.create_item({"id": "1", "pk": "a"})
    with pytest.raises(CosmosResourceExistsError):
        container.create_item({"id": "1", "pk": "a"})
    container.create_item({"id": "1", "pk": "b"})


def test_upsert_creates_and_replaces(container):
    assert container.upsert_item({"id": "1", "pk": "a", "n": 1})["n"] == 1
    assert container.upsert_item({"id": "1", "pk": "a", "n": 2})["n"] == 2
    assert container.read_item("1", "a")["n"] == 2


def test_a_stale_etag_is_412(container):
    first = container.create_item({"id": "1", "pk": "a"})
    second = container.upsert_item({"id": "1", "pk": "a", "n": 2})
    stale = {"etag": first["_etag"], "match_condition": MatchConditions.IfNotModified}
    for attempt in (
        lambda: container.replace_item("1", {"id": "1", "pk": "a"}, **stale),
        lambda: container.upsert_item({"id": "1", "pk": "a"}, **stale),
        lambda: container.delete_item("1", "a", **stale),
    ):
        with pytest.raises(CosmosAccessConditionFailedError):
            attempt()
    assert container.read_item("1", "a") == second
    fresh = {"etag": second["_etag"], "match_condition": MatchConditions.IfNotModified}
    assert container.replace_item("1", {"id": "1", "pk": "a", "n": 3}, **fresh)["n"] == 3


def test_a_replacement_may_give_another_id(container):
    created = container.create_item({"id": "1", "pk": "a"})
    renamed = container.replace_item("1", {"id": "2", "pk": "a"})
    assert container.read_item("2", "a") == renamed
    assert renamed["_rid"] == created["_rid"]
    with pytest.raises(CosmosResourceNotFoundError):
        container.read_item("1", "a")


def test_every_json_value_comes_back_as_it_went(container):
    value = {
        "text": 'tab\t, quote ", slash /, 漢字, 🌖, \u0001',
        "numbers": [0, -1, 2**53, -(2**53), 0.1, 1e-7, 1.7976931348623157e308],
        "nested": [{"a": [None, True, False, {}, []]}],
        "": "an empty name",
    }
    container.create_item({"id": "ünï-cødé", "pk": "ключ", "value": value})
    assert container.read_item("ünï-cødé", "ключ")["value"] == value


@pytest.mark.parametrize("key", ["text", 5, 5.5, True, False, None])
def test_partition_keys_of_every_type(container, key):
    container.create_item({"id": "1", "pk": key})
    assert container.read_item("1", key)["pk"] == key
    # To a query, None means that no key is given.
    key = NullPartitionKeyValue if key is None else key
    found = list(container.query_items("SELECT * FROM c", partition_key=key))
    assert [item["id"] for item in found] == ["1"]


def test_a_query_must_say_that_it_crosses_partitions(container):
    with pytest.raises(CosmosHttpResponseError) as error:
        list(container.query_items("SELECT * FROM c"))
    assert error.value.status_code == 400


def test_hierarchical_partition_keys(make_container):
    key = PartitionKey(["/tenant", "/user"], kind="MultiHash")
    container = make_container(key)
    for tenant in ("t1", "t2"):
        for user in ("u1", "u2", "u3"):
            container.create_item({"id": "1", "tenant": tenant, "user": user})
    assert container.read_item("1", ["t1", "u2"])["user"] == "u2"
    found = list(container.query_items("SELECT * FROM c", partition_key=["t1", "u2"]))
    assert [(item["tenant"], item["user"]) for item in found] == [("t1", "u2")]
    found = list(container.query_items("SELECT * FROM c", partition_key=["t1"]))
    assert {(item["tenant"], item["user"]) for item in found} == {
        ("t1", "u1"),
        ("t1", "u2"),
        ("t1", "u3"),
    }


def test_the_feed_of_all_versions_and_deletes(make_container):
    mode = "AllVersionsAndDeletes"
    container = make_container(change_feed_policy={"retentionDuration": 10}, default_ttl=-1)
    container.create_item({"id": "early", "pk": "a"})

    def read(**where):
        changes = list(container.query_items_change_feed(mode=mode, **where))
        return changes, container.client_connection.last_response_headers["etag"]

    changes, start = read()
    assert changes == []
    made = container.create_item({"id": "1", "pk": "a", "count": 1})
    kept = container.upsert_item({"id": "1", "pk": "a", "count": 2})
    container.delete_item("1", "a")
    expiring = container.create_item({"id": "2", "pk": "b", "ttl": 1})
    expires_at_its_second(container, expiring, expiring["_ts"] + 1)
    again = container.create_item({"id": "2", "pk": "b"})
    changes, end = read(continuation=start)
    facts = [
        (change["metadata"]["operationType"], change["current"], change.get("previous"))
        for change in changes
    ]
    assert facts == [
        ("create", made, None),
        ("replace", kept, made),
        ("delete", {}, kept),
        ("create", expiring, None),
        ("delete", {}, expiring),
        ("create", again, None),
    ]
    metadata = [change["metadata"] for change in changes]
    lsns = [one["lsn"] for one in metadata]
    assert lsns == sorted(lsns)
    assert metadata[1]["previousImageLSN"] == lsns[0]
    assert [one["crts"] for one in metadata[:2]] == [made["_ts"], kept["_ts"]]
    ends = [one for one in metadata if one["operationType"] == "delete"]
    assert [one["timeToLiveExpired"] for one in ends] == [False, True]
    assert [(one["id"], one["partitionKey"]) for one in ends] == [
        ("1", {"pk": "a"}),
        ("2", {"pk": "b"}),
    ]
    assert read(continuation=end)[0] == []

    # A partition key, and a container without the policy.
    nothing, start = read(partition_key="b")
    assert nothing == []
    container.create_item({"id": "3", "pk": "a"})
    wanted = container.create_item({"id": "3", "pk": "b"})
    assert [change["current"] for change in read(continuation=start)[0]] == [wanted]
    with pytest.raises(CosmosHttpResponseError) as refused:
        list(make_container().query_items_change_feed(mode=mode))
    assert refused.value.status_code == 400
    assert "All Versions and Deletes" in refused.value.message
    assert "must be enabled" in refused.value.message


def test_a_batch_is_all_or_nothing(container):
    done = container.execute_item_batch(
        [("create", ({"id": "1", "pk": "a"},)), ("upsert", ({"id": "2", "pk": "a"},))], "a"
    )
    assert [result["statusCode"] for result in done] == [201, 201]
    with pytest.raises(CosmosBatchOperationError) as error:
        container.execute_item_batch(
            [("delete", ("1",)), ("create", ({"id": "2", "pk": "a"},))], "a"
        )
    assert error.value.status_code == 409
    assert container.read_item("1", "a")["id"] == "1"
    with pytest.raises(CosmosBatchOperationError) as error:
        container.execute_item_batch([("create", ({"id": "3", "pk": "b"},))], "a")
    assert (error.value.status_code, error.value.sub_status) == (400, 1001)


def test_unique_keys_are_unique_in_a_logical_partition(database, make_container):
    policy = {"uniqueKeys": [{"paths": ["/email"]}, {"paths": ["/name/first", "/name/last"]}]}
    container = make_container(unique_key_policy=policy, default_ttl=-1)
    assert container.read()["uniqueKeyPolicy"] == policy

    def item(number, pk="a", **more):
        name = {"first": "Ada", "last": str(number)}
        return {"id": str(number), "pk": pk, "email": f"{number}@x", "name": name} | more

    container.create_item(item(1))
    container.create_item(item(2))
    container.create_item(item(1, pk="b"))
    name = {"first": "Ada", "last": "1"}
    for attempt in (
        lambda: container.create_item(item(3, email="1@x")),
        lambda: container.upsert_item(item(3, name=name)),
        lambda: container.replace_item("2", item(2, email="1@x")),
        lambda: container.patch_item("2", "a", [{"op": "set", "path": "/email", "value": "1@x"}]),
    ):
        with pytest.raises(CosmosHttpResponseError) as refused:
            attempt()
        assert refused.value.status_code == 409
        assert "unique index constraint" in refused.value.message.lower()
    container.upsert_item(item(1, more=True))

    # The operations of a batch see one another's values.
    with pytest.raises(CosmosBatchOperationError) as refused:
        container.execute_item_batch(
            [("create", (item(3),)), ("create", (item(4, email="1@x"),))], "a"
        )
    assert [r["statusCode"] for r in refused.value.operation_responses] == [424, 409]
    swapped = [("delete", ("1",)), ("replace", ("2", item(2, email="1@x")))]
    container.execute_item_batch(swapped, "a")

    # The policy stays what it was.
    with pytest.raises(CosmosHttpResponseError) as refused:
        database.replace_container(container, PartitionKey("/pk"), default_ttl=-1)
    assert refused.value.status_code == 403

    # What has expired holds nothing any more.
    expiring = container.create_item(item(5, ttl=1))
    with pytest.raises(CosmosResourceExistsError):
        container.create_item(item(6, email="5@x"))
    expires_at_its_second(container, expiring, expiring["_ts"] + 1)
    container.create_item(item(6, email="5@x"))


def test_patch_changes_a_part(container):
    container.create_item({"id": "1", "pk": "a", "n": 1, "old": True})
    patched = container.patch_item(
        "1",
        "a",
        [
            {"op": "incr", "path": "/n", "value": 2},
            {"op": "add", "path": "/new", "value": [1]},
            {"op": "remove", "path": "/old"},
        ],
    )
    assert (patched["n"], patched["new"], "old" in patched) == (3, [1], False)


# Many items


@pytest.fixture(scope="module")
def forty(database):
    container = database.create_container(f"forty-{uuid.uuid4()}", PartitionKey("/pk"))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(container.create_item, (forty_item(number) for number in range(40))))
    return container


def forty_item(number):
    return {"id": f"{number:02}", "pk": f"p{number % 4}", "n": number, "even": number % 2 == 0}


def query(container, text, **options):
    options.setdefault("enable_cross_partition_query", True)
    parameters = [
        {"name": f"@{name}", "value": value} for name, value in options.pop("given", {}).items()
    ]
    return list(container.query_items(text, parameters=parameters, **options))


def test_queries_find_what_they_ask_for(forty):
    assert len(query(forty, "SELECT * FROM c")) == 40
    assert query(forty, "SELECT VALUE COUNT(1) FROM c") == [40]
    assert query(forty, "SELECT VALUE COUNT(1) FROM c WHERE c.even = true") == [20]
    found = query(
        forty,
        "SELECT * FROM c WHERE c.n >= @least AND c.n < @most AND c.even = @even",
        given={"least": 10, "most": 20, "even": True},
    )
    assert sorted(item["n"] for item in found) == [10, 12, 14, 16, 18]
    found = query(
        forty,
        "SELECT * FROM c WHERE c.id IN (@a, @b) OR c.n = 7",
        given={"a": "01", "b": "none"},
    )
    assert sorted(item["id"] for item in found) == ["01", "07"]
    found = query(
        forty, "SELECT * FROM c", partition_key="p3", enable_cross_partition_query=None
    )
    assert {item["pk"] for item in found} == {"p3"} and len(found) == 10


def test_order_by_sorts_over_pages(forty):
    for direction, reverse in (("ASC", False), ("DESC", True)):
        found = query(forty, f"SELECT * FROM c ORDER BY c.n {direction}", max_item_count=7)
        assert [item["n"] for item in found] == sorted(range(40), reverse=reverse)


@pytest.fixture
def planning(monkeypatch):
    """Makes the SDK ask for a plan first, and merge the answers of the ranges by itself."""
    proxy = execution_dispatcher._ProxyQueryExecutionContext
    fetch = proxy.fetch_next_block

    def plan_and_fetch(self):
        # Ranges are read by the same way, and have no plan.
        if self._resource_link and not self._fetched_query_plan:
            self._create_execution_context_with_query_plan()
        return fetch(self)

    monkeypatch.setattr(proxy, "fetch_next_block", plan_and_fetch)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM c ORDER BY c.n DESC",
        "SELECT VALUE c.n FROM c WHERE c.even ORDER BY c.n",
        "SELECT c.id, c.n AS number FROM c WHERE c.pk IN ('p1', 'p2') ORDER BY c.n",
        "SELECT * FROM c WHERE c.pk = 'p1' AND c.pk = 'p2'",
    ],
)
def test_the_sdk_that_follows_a_plan_finds_the_same(make_container, text, request):
    container = make_container(offer_throughput=30000)
    for number in range(40):
        container.create_item(forty_item(number))
    expected = query(container, text)
    request.getfixturevalue("planning")
    assert query(container, text) == expected
    assert len(expected) == len({str(row) for row in expected})


def test_read_all_items_pages_with_a_continuation(forty):
    pages = forty.read_all_items(max_item_count=9).by_page()
    sizes = [len(list(page)) for page in pages]
    assert sum(sizes) == 40 and max(sizes) <= 9
    pages = forty.query_items(
        "SELECT * FROM c", enable_cross_partition_query=True, max_item_count=15
    ).by_page()
    first = [item["id"] for item in next(pages)]
    rest = forty.query_items(
        "SELECT * FROM c", enable_cross_partition_query=True, max_item_count=15
    ).by_page(pages.continuation_token)
    ids = first + [item["id"] for page in rest for item in page]
    assert len(first) <= 15 and sorted(ids) == [f"{number:02}" for number in range(40)]


def test_read_items_finds_what_is_there(forty):
    wanted = [(f"{number:02}", f"p{number % 4}") for number in range(0, 40, 3)]
    found = forty.read_items(wanted + [("none", "p1"), ("00", "p1")])
    assert sorted((item["id"], item["pk"]) for item in found) == sorted(wanted)


# Databases, containers, throughput, session


def test_databases_are_listed_and_deleted(client):
    name = f"sdk-{uuid.uuid4()}"
    client.create_database(name)
    assert name in [database["id"] for database in client.list_databases()]
    with pytest.raises(CosmosResourceExistsError):
        client.create_database(name)
    client.delete_database(name)
    with pytest.raises(CosmosResourceNotFoundError):
        client.get_database_client(name).read()


def test_a_container_keeps_its_definition(database, make_container):
    policy = {
        "indexingMode": "consistent",
        "automatic": True,
        "includedPaths": [{"path": "/*"}],
        "excludedPaths": [{"path": "/secret/*"}, {"path": '/"_etag"/?'}],
    }
    container = make_container("/deep/key", default_ttl=1000, indexing_policy=policy)
    properties = container.read()
    assert properties["defaultTtl"] == 1000
    assert properties["partitionKey"]["paths"] == ["/deep/key"]
    assert {path["path"] for path in properties["indexingPolicy"]["excludedPaths"]} == {
        "/secret/*",
        '/"_etag"/?',
    }
    assert container.id in [listed["id"] for listed in database.list_containers()]


def test_offers_are_read_and_replaced(make_container):
    container = make_container(offer_throughput=600)
    assert container.get_throughput().offer_throughput == 600
    container.replace_throughput(800)
    assert container.get_throughput().offer_throughput == 800


def test_the_sdk_rides_through_throttling(make_container):
    container = make_container(offer_throughput=400)
    statuses = []

    def note(response):
        statuses.append(response.http_response.status_code)

    # Some 690 RU each: one leaves a debt that takes most of a second.
    text = "x" * 1_500_000
    for number in range(5):
        container.create_item({"id": str(number), "pk": "a", "text": text}, raw_response_hook=note)
    assert statuses.count(201) == 5
    assert 429 in statuses


def test_a_session_token_leads_to_the_write(container, nodes):
    written = container.create_item({"id": "1", "pk": "a"})
    token = written.get_response_headers()["x-ms-session-token"]
    assert token
    for url in nodes.urls.values():
        with connect(url) as other:
            elsewhere = other.get_database_client(database_of(container))
            elsewhere = elsewhere.get_container_client(container.id)
            assert elsewhere.read_item("1", "a", session_token=token)["id"] == "1"


def test_a_container_made_anew_is_empty(database):
    name = f"again-{uuid.uuid4()}"
    first = database.create_container(name, PartitionKey("/pk"))
    first.create_item({"id": "1", "pk": "a"})
    database.delete_container(name)
    database.create_container(name, PartitionKey("/pk"))
    with pytest.raises(CosmosResourceNotFoundError):
        first.read_item("1", "a")
    assert list(first.read_all_items()) == []


def test_a_wrong_key_is_401(client):
    wrong = "d3Jvbmcga2V5IHRoYXQgbm9ib2R5IGhhcyBldmVyIHNldA=="
    with pytest.raises(CosmosHttpResponseError) as error:
        type(client)(cluster.URL, wrong)
    assert error.value.status_code == 401


# Time to live


@pytest.mark.parametrize("ttl", [0, -2, 1.5, "10", True, 2**31, None])
def test_invalid_ttl_is_400(make_container, ttl):
    container = make_container(default_ttl=-1)
    with pytest.raises(CosmosHttpResponseError) as error:
        container.create_item({"id": "1", "pk": "a", "ttl": ttl})
    assert error.value.status_code == 400
    assert list(container.read_all_items()) == []


def test_items_expire_at_their_second(make_container):
    container = make_container(default_ttl=2)
    inherits = container.create_item({"id": "inherits", "pk": "a"})
    own = container.create_item({"id": "own", "pk": "a", "ttl": 3})
    kept = container.create_item({"id": "kept", "pk": "a", "ttl": -1})
    expires_at_its_second(container, inherits, inherits["_ts"] + 2)
    expires_at_its_second(container, own, own["_ts"] + 3)
    assert container.read_item("kept", "a") == kept
    assert query(container, "SELECT VALUE COUNT(1) FROM c") == [1]
    assert [item["id"] for item in container.read_all_items()] == ["kept"]


def expires_at_its_second(container, item, due):
    """Polls until the item is gone: not before `due`, and not noticeably after."""
    while True:
        asked = time.time()
        try:
            container.read_item(item["id"], item["pk"])
        except CosmosResourceNotFoundError:
            assert time.time() >= due, "gone too early"
            return
        assert asked < due + LATE_SECONDS_MAX, "still there"
        time.sleep(0.01)


def test_an_expired_item_is_as_if_it_had_never_been(make_container):
    container = make_container(default_ttl=-1)
    made = container.create_item({"id": "1", "pk": "a", "ttl": 1, "old": True})
    expires_at_its_second(container, made, made["_ts"] + 1)
    condition = {"etag": made["_etag"], "match_condition": MatchConditions.IfNotModified}
    for attempt in (
        lambda: container.replace_item("1", {"id": "1", "pk": "a"}),
        lambda: container.replace_item("1", {"id": "1", "pk": "a"}, **condition),
        lambda: container.delete_item("1", "a", **condition),
    ):
        with pytest.raises(CosmosResourceNotFoundError):
            attempt()
    again = container.create_item({"id": "1", "pk": "a"})
    assert "old" not in again and again["_etag"] != made["_etag"]


def test_a_write_restarts_the_countdown(make_container):
    container = make_container(default_ttl=2)
    first = container.create_item({"id": "1", "pk": "a"})
    wait_until(first["_ts"] + 1)
    second = container.upsert_item({"id": "1", "pk": "a"})
    wait_until(first["_ts"] + 2)
    assert second["_ts"] > first["_ts"]
    assert container.read_item("1", "a") == second
    expires_at_its_second(container, second, second["_ts"] + 2)


def test_a_container_changes_its_default(database, make_container):
    container = make_container(default_ttl=1)
    early = container.create_item({"id": "early", "pk": "a"})
    expires_at_its_second(container, early, early["_ts"] + 1)
    key = PartitionKey("/pk")
    database.replace_container(container, key, default_ttl=1000)
    late = container.create_item({"id": "late", "pk": "a"})
    wait_until(late["_ts"] + 2)
    assert [item["id"] for item in container.read_all_items()] == ["late"]
    # Lowered, the new default hides older items at once; the expired never come back.
    database.replace_container(container, key, default_ttl=1)
    assert list(container.read_all_items()) == []
    database.replace_container(container, key)
    assert "defaultTtl" not in container.read()
    assert list(container.read_all_items()) == []


def wait_until(second):
    time.sleep(max(0, second - time.time()))


# The asynchronous client


async def test_the_asynchronous_client_does_the_same():
    async with AsyncCosmosClient(cluster.URL, cluster.KEY) as client:
        database = await client.create_database(f"sdk-{uuid.uuid4()}")
        try:
            key = PartitionKey("/pk")
            container = await database.create_container("c", key, default_ttl=-1)
            for number in range(12):
                body = {"id": str(number), "pk": f"p{number % 3}", "n": number}
                await container.create_item(body)
            await container.upsert_item({"id": "0", "pk": "p0", "n": 100})
            assert (await container.read_item("0", "p0"))["n"] == 100
            found = container.query_items("SELECT * FROM c ORDER BY c.n", max_item_count=5)
            assert [item["n"] async for item in found] == [*range(1, 12), 100]
            brief = await container.create_item({"id": "brief", "pk": "p0", "ttl": 1})
            wait_until(brief["_ts"] + 1)
            with pytest.raises(CosmosResourceNotFoundError):
                await container.read_item("brief", "p0")
            await container.delete_item("0", "p0")
            assert len([item async for item in container.read_all_items()]) == 11
        finally:
            await client.delete_database(database)


def database_of(container):
    return container.container_link.split("/")[1]
