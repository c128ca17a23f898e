"""A Mosquitto that refuses subscriptions."""

import json
from pathlib import Path

import pytest

PLUGINS = (
    "lib/*/mosquitto_dynamic_security.so",
    "lib/mosquitto_dynamic_security.so",
    "local/lib/mosquitto_dynamic_security.so",
)

RULES = {
    "defaultACLAccess": {
        "publishClientSend": True,
        "publishClientReceive": True,
        "subscribe": True,
        "unsubscribe": True,
    },
    "clients": [],
    "groups": [{"groupname": "all", "roles": [{"rolename": "no secrets"}]}],
    "anonymousGroup": "all",
    "roles": [
        {
            "rolename": "no secrets",
            "acls": [{"acltype": "subscribePattern", "topic": "secret/#", "allow": False}],
        }
    ],
}


def access_control(directory: Path) -> tuple[str, ...]:
    """Configuration lines that refuse the subscription itself; `acl_file` does not."""
    plugins = [path for place in PLUGINS for path in Path("/usr").glob(place)]
    if not plugins:
        pytest.skip("mosquitto's dynamic security plugin is not installed")
    rules = directory / "rules.json"
    rules.write_text(json.dumps(RULES))
    return (f"plugin {plugins[0]}", f"plugin_opt_config_file {rules}")
