"""Settings of the federation that the manager keeps, and the environment variables of the paper."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hansa.errors import UsageError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class FederationSettings:
    """Settings of the federation, stored in the database; an operator may change them."""

    announcement_interval: float = 2.0
    """Seconds between core announcements (`CORE_ANN_INTERVAL`) of the paper's federators. Hansa's
    agents announce only changes."""
    beacon_interval: float = 2.0
    """Seconds between two beacons of one topic (`BEACON_INTERVAL`)."""
    redundancy: int = 2
    """Parents per mesh member (`FED_REDUNDANCY`); the same on all nodes."""
    degree_max: int = 5
    """Largest number of neighbours of a node (`TOP_MAX_REDUNDANCY`)."""
    health_interval: float = 5.0
    """Seconds between health reports of a node; it is suspected after two missed ones."""
    approval: bool = False
    """Whether changes of the plan wait for an operator, except those without which the federation
    stays split, and links of nodes that are gone."""

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range."""
        for name in ("announcement_interval", "beacon_interval", "health_interval"):
            if not 0.1 <= getattr(self, name) <= 3600:
                raise UsageError(f"{name} must be from 0.1 to 3600 seconds")
        if not 1 <= self.redundancy <= 16:
            raise UsageError("redundancy must be from 1 to 16")
        if not 3 <= self.degree_max <= 64:
            raise UsageError("degree_max must be from 3 to 64")


PAPER_VARIABLES = {
    "CORE_ANN_INTERVAL": "announcement_interval",
    "BEACON_INTERVAL": "beacon_interval",
    "FED_REDUNDANCY": "redundancy",
    "TOP_MAX_REDUNDANCY": "degree_max",
    "HANSA_MANAGER_HEALTH_INTERVAL": "health_interval",
}

APPROVAL_VARIABLE = "HANSA_MANAGER_APPROVAL"


def settings_from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in environment variables, which have the names of the paper."""
    given: dict[str, Any] = {}
    for variable, name in PAPER_VARIABLES.items():
        if (text := environment.get(variable)) is not None:
            given[name] = (
                _number(variable, text) if name.endswith("interval") else _whole(variable, text)
            )
    if (text := environment.get(APPROVAL_VARIABLE)) is not None:
        if text not in ("yes", "no"):
            raise UsageError(f"{APPROVAL_VARIABLE} must be yes or no, not {text!r}")
        given["approval"] = text == "yes"
    return given


def make_settings(values: Mapping[str, Any]) -> FederationSettings:
    """Return the defaults with these values; unknown names, from other versions, are ignored."""
    known = {field.name for field in fields(FederationSettings)}
    return replace(FederationSettings(), **{n: v for n, v in values.items() if n in known})


def _number(variable: str, text: str) -> float:
    """Parse `2s` or `500ms`, as in the paper, or plain seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?", text)
    if not found:
        raise UsageError(f"{variable} must be a time such as 2s or 500ms, not {text!r}")
    return float(found[1]) * _UNITS[found[2] or "s"]


def _whole(variable: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UsageError(f"{variable} must be a whole number, not {text!r}")
    return int(text)
