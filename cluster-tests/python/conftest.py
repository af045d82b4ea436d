"""Clients and containers for the tests, which share one running cluster and clean up after."""

import uuid

import pytest
from azure.cosmos import CosmosClient, PartitionKey

import cluster

LOCATIONS = ["node1", "node2", "node3"]


def connect(url=cluster.URL):
    """A client that goes on with another node when one dies."""
    return CosmosClient(
        url, cluster.KEY, multiple_write_locations=True, preferred_locations=LOCATIONS
    )


@pytest.fixture(scope="session")
def client():
    with connect() as client:
        yield client


@pytest.fixture(scope="session")
def database(client):
    database = client.create_database(f"sdk-{uuid.uuid4()}")
    yield database
    client.delete_database(database)


@pytest.fixture
def make_container(database):
    """Makes containers with a unique name; the database takes them along when it goes."""

    def make(path="/pk", **settings):
        key = path if isinstance(path, PartitionKey) else PartitionKey(path)
        return database.create_container(f"c-{uuid.uuid4()}", key, **settings)

    return make


@pytest.fixture
def container(make_container):
    return make_container()


@pytest.fixture
def nodes():
    """The cluster whose nodes can be killed. Who kills one starts it again, whatever happens."""
    running = cluster.connect()
    if running is None:
        pytest.skip("no cluster of this checkout runs: there is nothing to kill")
    running.wait_ready()
    yield running
    running.wait_ready()
