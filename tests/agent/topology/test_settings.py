import pytest

from hansa.agent.settings import load_settings
from hansa.errors import UsageError


def test_paper_environment_variables_are_accepted():
    settings = load_settings(
        None,
        {"TOPOLOGY_MANAGER_URL": "http://m:8080", "ADVERTISED_LISTENER": "tcp://b:1883"},
    )
    assert settings.topology.manager == "http://m:8080"
    assert settings.topology.advertised_broker == "tcp://b:1883"
    ours = {"HANSA_TOPOLOGY_MANAGER": "http://o:1", "TOPOLOGY_MANAGER_URL": "http://m:8080"}
    assert load_settings(None, ours).topology.manager == "http://o:1"


def test_manager_variables_are_not_agent_settings():
    load_settings(None, {"HANSA_MANAGER_TOKEN": "x", "HANSA_MANAGER_HEALTH_INTERVAL": "1"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"HANSA_TOPOLOGY_MANAGER": "m:8080"}, "manager must be http://HOST:PORT"),
        ({"HANSA_TOPOLOGY_DEGREE_MAX": "2"}, "degree_max must be from 3 to 64"),
        ({"HANSA_TOPOLOGY_ADVERTISED_LINK": "a:x"}, "the port must be a number"),
        (
            {
                "HANSA_TOPOLOGY_HEAL": "true",
                "HANSA_LINK_HOST": "0.0.0.0",
                "HANSA_LINK_INSECURE": "true",
            },
            "advertised_link must say where others reach this agent",
        ),
        ({"HANSA_TOPOLOGY_HEAL": "true", "HANSA_LINK_PORT": "0"}, "advertised_link must say"),
        (
            {"HANSA_TOPOLOGY_ANNOUNCEMENTS": "true", "HANSA_BROKER_OBSERVER": "embedded"},
            "announcements need a broker",
        ),
    ],
)
def test_invalid_setting_is_refused_by_name(given, said):
    with pytest.raises(UsageError, match=said):
        load_settings(None, given)


def test_wildcard_address_is_valid_with_an_advertised_address():
    given = {
        "HANSA_TOPOLOGY_HEAL": "yes",
        "HANSA_LINK_HOST": "0.0.0.0",
        "HANSA_LINK_INSECURE": "true",
    }
    load_settings(None, given | {"HANSA_TOPOLOGY_ADVERTISED_LINK": "plant-1:10500"})
