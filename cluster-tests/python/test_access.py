"""What users of the unmodified azure-cosmos SDK may do without a key: users, permissions, tokens."""

import time
import uuid

import pytest
from azure.core import MatchConditions
from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.aio import CosmosClient as AsyncCosmosClient
from azure.cosmos.documents import PermissionMode
from azure.cosmos.exceptions import (
    CosmosAccessConditionFailedError,
    CosmosHttpResponseError,
    CosmosResourceExistsError,
    CosmosResourceNotFoundError,
)

import cluster

# The shortest lifetime of a token, and how much longer it may be until that is noticed.
LIFETIME_SECONDS_MIN = 10
LATE_SECONDS_MAX = 2


@pytest.fixture
def user(database):
    user = database.create_user({"id": f"u-{uuid.uuid4()}"})
    yield user
    database.delete_user(user)


@pytest.fixture
def carts(container):
    """A container with the items `a` (key `k`) and `b` (key `l`)."""
    for id, key in ("a", "k"), ("b", "l"):
        container.create_item({"id": id, "pk": key})
    return container


def grant(user, resource, mode, **more):
    """Permits a user something; answers the permission as it was created."""
    id = f"p-{uuid.uuid4()}"
    return user.create_permission(
        {"id": id, "permissionMode": mode, "resource": resource, **more}
    )


def link(container, item=None):
    return container.container_link + (f"/docs/{item}" if item else "")


def bear(permission, container):
    """The container, as whoever has the permission's token sees it."""
    properties = permission.properties
    client = CosmosClient(cluster.URL, {properties["resource"]: properties["_token"]})
    database, name = container.container_link.split("/")[1::2]
    return client.get_database_client(database).get_container_client(name)


def refused(attempt):
    with pytest.raises(CosmosHttpResponseError) as error:
        # A query or a feed asks nothing before somebody wants to know.
        list(attempt() or [])
    return error.value.status_code


# Users and permissions


def test_users_are_created_renamed_and_deleted(database):
    name = f"u-{uuid.uuid4()}"
    user = database.create_user({"id": name})
    created = user.read()
    assert created["id"] == name
    with pytest.raises(CosmosResourceExistsError):
        database.create_user({"id": name})
    assert database.upsert_user({"id": name}).read()["_rid"] == created["_rid"]
    assert name in [listed["id"] for listed in database.list_users()]
    query = "SELECT * FROM root r WHERE r.id=@id"
    found = list(database.query_users(query, [{"name": "@id", "value": name}]))
    assert [row["_rid"] for row in found] == [created["_rid"]]
    renamed = database.replace_user(name, {"id": f"{name}-2"})
    assert renamed.read()["_rid"] == created["_rid"]
    with pytest.raises(CosmosResourceNotFoundError):
        user.read()
    database.delete_user(renamed)
    with pytest.raises(CosmosResourceNotFoundError):
        renamed.read()


def test_permissions_are_created_replaced_and_deleted(user, carts):
    definition = {
        "id": "p",
        "permissionMode": PermissionMode.Read,
        "resource": link(carts),
        "resourcePartitionKey": ["k"],
    }
    created = user.create_permission(definition).properties
    assert {name: created[name] for name in definition} == definition
    with pytest.raises(CosmosResourceExistsError):
        user.create_permission(definition)
    definition["permissionMode"] = PermissionMode.All
    upserted = user.upsert_permission(definition).properties
    assert upserted["_rid"] == created["_rid"]
    assert upserted["permissionMode"] == PermissionMode.All
    assert [listed["id"] for listed in user.list_permissions()] == ["p"]
    found = list(user.query_permissions("SELECT * FROM root r WHERE r.permissionMode = 'all'"))
    assert [row["id"] for row in found] == ["p"]
    stale = {"etag": created["_etag"], "match_condition": MatchConditions.IfNotModified}
    with pytest.raises(CosmosAccessConditionFailedError):
        user.replace_permission("p", definition, **stale)
    user.replace_permission("p", {**definition, "id": "q"})
    assert user.get_permission("q").properties["_rid"] == created["_rid"]
    user.delete_permission("q")
    with pytest.raises(CosmosResourceNotFoundError):
        user.get_permission("q")


@pytest.mark.parametrize(
    "wrong, status",
    [
        ({"permissionMode": "Write"}, 400),
        ({"resource": "dbs/only"}, 400),
        ({"resource": "dbs/no/colls/such"}, 404),
        ({"resourcePartitionKey": []}, 400),
    ],
)
def test_invalid_permissions_are_refused(user, carts, wrong, status):
    definition = {"id": "p", "permissionMode": PermissionMode.All, "resource": link(carts)}
    with pytest.raises(CosmosHttpResponseError) as error:
        user.create_permission({**definition, **wrong})
    assert error.value.status_code == status


# What tokens allow


def test_a_token_to_read_reads(user, carts):
    reader = bear(grant(user, link(carts), PermissionMode.Read), carts)
    assert reader.read_item("a", "k")["id"] == "a"
    assert {item["id"] for item in reader.read_all_items()} == {"a", "b"}
    across = reader.query_items("SELECT * FROM c", enable_cross_partition_query=True)
    assert len(list(across)) == 2
    feed = reader.query_items_change_feed(start_time="Beginning")
    assert {item["id"] for item in feed} == {"a", "b"}
    item = {"id": "a", "pk": "k"}
    for attempt in (
        lambda: reader.create_item({"id": "c", "pk": "k"}),
        lambda: reader.upsert_item(item),
        lambda: reader.replace_item("a", item),
        lambda: reader.patch_item("a", "k", [{"op": "add", "path": "/n", "value": 1}]),
        lambda: reader.delete_item("a", "k"),
        lambda: reader.execute_item_batch([("read", ("a",))], "k"),
        lambda: reader.delete_all_items_by_partition_key("k"),
    ):
        assert refused(attempt) == 403


def test_a_token_to_write_writes(user, carts):
    writer = bear(grant(user, link(carts), PermissionMode.All), carts)
    writer.create_item({"id": "c", "pk": "k"})
    writer.execute_item_batch([("upsert", ({"id": "d", "pk": "k"},))], "k")
    writer.delete_item("c", "k")
    # At Session, whoever has not seen a write may be answered by a replica that has not, either.
    seen = writer.client_connection.last_response_headers["x-ms-session-token"]
    items = carts.read_all_items(session_token=seen)
    assert {item["id"] for item in items} == {"a", "b", "d"}


def test_a_token_for_a_partition_key_stays_within_it(user, carts):
    permission = grant(user, link(carts), PermissionMode.All, resourcePartitionKey=["k"])
    writer = bear(permission, carts)
    writer.create_item({"id": "c", "pk": "k"})
    within = writer.query_items("SELECT VALUE c.id FROM c", partition_key="k")
    assert sorted(within) == ["a", "c"]
    for attempt in (
        lambda: writer.read_item("b", "l"),
        lambda: writer.create_item({"id": "d", "pk": "l"}),
        lambda: writer.delete_item("b", "l"),
        lambda: writer.query_items("SELECT * FROM c", partition_key="l"),
        lambda: writer.query_items("SELECT * FROM c", enable_cross_partition_query=True),
        lambda: writer.read_all_items(),
    ):
        assert refused(attempt) == 403


def test_a_token_for_an_item_is_for_that_item(user, carts):
    owner = bear(grant(user, link(carts, "a"), PermissionMode.All), carts)
    assert owner.read_item("a", "k")["id"] == "a"
    assert owner.replace_item("a", {"id": "a", "pk": "k", "n": 1})["n"] == 1
    # Not to be tried with the client of `owner`: the SDK has no token for these, and sends none.
    other = bear(grant(user, link(carts, "a"), PermissionMode.All), carts)
    tokens = other.client_connection.resource_tokens
    tokens[link(carts)] = tokens[link(carts, "a")]
    for attempt in (
        lambda: other.read_item("b", "l"),
        lambda: other.read_all_items(),
        lambda: other.create_item({"id": "c", "pk": "k"}),
        lambda: other.replace_item("a", {"id": "c", "pk": "k"}),
    ):
        assert refused(attempt) == 403


def test_a_token_ends_with_its_permission(database, user, carts):
    permission = grant(user, link(carts), PermissionMode.Read)
    reader = bear(permission, carts)
    reader.read_item("a", "k")
    user.delete_permission(permission)
    assert refused(lambda: reader.read_item("a", "k")) == 403
    # A container that is made anew under the same name is another one.
    reader = bear(grant(user, link(carts), PermissionMode.Read), carts)
    reader.read_item("a", "k")
    database.delete_container(carts)
    database.create_container(carts.id, PartitionKey("/pk"))
    assert refused(lambda: reader.read_item("a", "k")) == 403


def test_a_token_lives_as_long_as_was_asked_for(user, carts):
    permission = grant(user, link(carts), PermissionMode.Read)
    for seconds in 9, 86401:
        with pytest.raises(CosmosHttpResponseError) as error:
            user.get_permission(permission, resource_token_expiry_seconds=seconds)
        assert error.value.status_code == 400
    asked = time.time()
    short = user.get_permission(permission, resource_token_expiry_seconds=LIFETIME_SECONDS_MIN)
    reader = bear(short, carts)
    while True:
        started = time.time()
        try:
            reader.read_item("a", "k")
        except CosmosHttpResponseError as error:
            assert error.status_code == 403
            assert time.time() >= asked + LIFETIME_SECONDS_MIN - 1, "it ended too early"
            break
        assert started < asked + LIFETIME_SECONDS_MIN + LATE_SECONDS_MAX, "it still works"
        time.sleep(0.1)
    # The permission is still there, and has a new token.
    assert bear(user.get_permission(permission), carts).read_item("a", "k")["id"] == "a"


def test_a_token_that_is_none_is_401(user, carts):
    permission = grant(user, link(carts), PermissionMode.Read)
    permission.properties["_token"] = permission.properties["_token"][:-4] + "AAAA"
    with pytest.raises(CosmosHttpResponseError) as error:
        bear(permission, carts)
    assert error.value.status_code == 401


async def test_the_asynchronous_client_bears_tokens(user, carts):
    permission = grant(user, link(carts), PermissionMode.Read).properties
    tokens = {permission["resource"]: permission["_token"]}
    database, name = carts.container_link.split("/")[1::2]
    async with AsyncCosmosClient(cluster.URL, tokens) as client:
        reader = client.get_database_client(database).get_container_client(name)
        assert (await reader.read_item("a", "k"))["id"] == "a"
        with pytest.raises(CosmosHttpResponseError) as error:
            await reader.create_item({"id": "c", "pk": "k"})
        assert error.value.status_code == 403
