"""A stand-in Hub, and clients of it."""

import pytest
from hub_client import Client
from hub_stand_in import TOKEN, StandIn


@pytest.fixture(scope="module")
def hub():
    with StandIn() as server:
        yield server


@pytest.fixture(scope="module")
def owner(hub, tmp_path_factory):
    """A client with a valid token."""
    client = Client(hub.url, tmp_path_factory.mktemp("owner"), TOKEN)
    yield client
    client.close()


@pytest.fixture(scope="module")
def visitor(hub, tmp_path_factory):
    """A client without a token."""
    client = Client(hub.url, tmp_path_factory.mktemp("visitor"))
    yield client
    client.close()
