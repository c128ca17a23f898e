"""Advice of `hansa doctor`."""

from pathlib import Path

import pytest

from hansa.agent.broker.delivery_class import DeliveryProbeResult
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.types import Version
from hansa.testbed.probes.advice import (
    LOG_SETTINGS,
    BrokerAdvice,
    BrokerFindings,
    Severity,
    advise_on_broker,
    configuration_lines,
)

GOOD = BrokerLimits(version=Version.V5, client_id="hansa", keep_alive=30, session_expiry=0)


def limits(**changed) -> BrokerLimits:
    given = {"version": Version.V5, "client_id": "hansa", "keep_alive": 30, "session_expiry": 0}
    return BrokerLimits(**{**given, **changed})


def only(**findings) -> BrokerAdvice:
    (advice,) = advise_on_broker(BrokerFindings(**findings))
    return advice


def test_documentation_has_the_same_log_settings():
    page = Path(__file__).parents[3] / "docs" / "how-to" / "configure.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in LOG_SETTINGS if line not in lines] == []


def test_unknown_findings_give_no_advice():
    assert advise_on_broker(BrokerFindings()) == ()


def test_good_broker_gets_no_advice():
    findings = BrokerFindings(
        version="mosquitto version 2.0.11",
        limits=GOOD,
        logs_subscribe=True,
        logs_unsubscribe=True,
        logs_connect=True,
        logs_takeover=True,
        publishes_counts=True,
        has_history=True,
        has_persistence=True,
    )
    assert advise_on_broker(findings) == ()


def test_broker_that_does_not_log_to_topics():
    advice = only(
        logs_subscribe=False, logs_unsubscribe=False, logs_connect=False, logs_takeover=False
    )
    assert advice.severity is Severity.ERROR
    assert advice.lines == LOG_SETTINGS


@pytest.mark.parametrize(
    ("field", "severity"),
    [
        ("logs_subscribe", Severity.ERROR),
        ("logs_connect", Severity.ERROR),
        ("logs_unsubscribe", Severity.WARNING),
        ("logs_takeover", Severity.WARNING),
    ],
)
def test_missing_log_type_gives_all_log_settings(field, severity):
    """The first `log_type` of a configuration turns off the default types."""
    advice = only(**{field: False})
    assert (advice.severity, advice.lines) == (severity, LOG_SETTINGS)


@pytest.mark.parametrize(
    ("version", "severity"),
    [
        ("", Severity.WARNING),
        ("mosquitto version 1.6.9", Severity.WARNING),
        ("emqx 5.8", Severity.ERROR),
    ],
)
def test_untested_versions_get_advice(version, severity):
    assert only(version=version).severity is severity


@pytest.mark.parametrize("version", ["mosquitto version 2.0.11", "mosquitto version 2.1.2-beta"])
def test_tested_versions_get_no_advice(version):
    assert advise_on_broker(BrokerFindings(version=version)) == ()


@pytest.mark.parametrize(
    ("findings", "lines"),
    [
        (
            {"has_history": False},
            ("log_dest file /var/log/mosquitto/mosquitto.log", "log_type information"),
        ),
        ({"version": "mosquitto version 2.0.11", "publishes_counts": False}, ("sys_interval 10",)),
        ({"has_persistence": False}, ("persistence true", "autosave_interval 60")),
        ({"dropped_count": 7}, ("max_queued_messages 100000",)),
        (
            {"delivery": DeliveryProbeResult(queued_count=1_000, queue_offered_count=1_200)},
            ("max_queued_messages 100000",),
        ),
        ({"limits": limits(qos_max=1)}, ("max_qos 2",)),
        ({"limits": limits(retain_available=False)}, ("retain_available true",)),
        ({"limits": limits(packet_bytes_max=2_000)}, ("max_packet_size 1048576",)),
        ({"limits": limits(version=Version.V311)}, ()),
        ({"bridges": ("north",)}, ()),
        ({"limits": limits(version=Version.V311), "overlap_copies": 2}, ()),
    ],
)
def test_possible_losses_are_warnings(findings, lines):
    advice = only(**findings)
    assert (advice.severity, advice.lines) == (Severity.WARNING, lines)


@pytest.mark.parametrize(
    ("findings", "lines"),
    [
        ({"dropped_count": 0}, ("max_queued_messages 100000",)),
        (
            {
                "dropped_count": 0,
                "delivery": DeliveryProbeResult(queued_count=700, queue_offered_count=700),
            },
            ("max_queued_messages 100000",),
        ),
        (
            {"delivery": DeliveryProbeResult(resumes_session=True)},
            ("persistence true", "autosave_interval 60"),
        ),
        ({"limits": limits(receive_maximum=20)}, ("max_inflight_messages 100",)),
    ],
)
def test_improvements_are_notes(findings, lines):
    advice = only(**findings)
    assert (advice.severity, advice.lines) == (Severity.NOTE, lines)


@pytest.mark.parametrize("dropped_count", [0, 7])
def test_sufficient_queue_gets_no_advice(dropped_count):
    delivery = DeliveryProbeResult(queued_count=1_200, queue_offered_count=1_200)
    assert advise_on_broker(BrokerFindings(dropped_count=dropped_count, delivery=delivery)) == ()


def test_advice_is_sorted_and_lines_are_unique():
    advices = advise_on_broker(
        BrokerFindings(
            dropped_count=0, version="", bridges=("a",), logs_subscribe=False, has_history=False
        )
    )
    assert [advice.severity for advice in advices] == sorted(
        (advice.severity for advice in advices), key=list(Severity).index
    )
    assert configuration_lines((*advices, *advices)) == (
        *LOG_SETTINGS,
        "sys_interval 10",
        "log_dest file /var/log/mosquitto/mosquitto.log",
        "max_queued_messages 100000",
    )


def test_other_brokers_are_judged_by_capabilities_only():
    findings = BrokerFindings(
        version="",
        logs_subscribe=False,
        limits=limits(version=Version.V311, packet_bytes_max=2_000),
        delivery=DeliveryProbeResult(queued_count=1, queue_offered_count=2),
        overlap_copies=1,
    )
    problems = [advice.problem.split(":")[0] for advice in advise_on_broker(findings, "static")]
    assert problems == [
        "of 2 publications for a disconnected client the broker kept 1 and dropped the rest",
        "the broker does not support MQTT 5",
        "the broker accepts packets of at most 2000 bytes",
        "the broker sends one copy of a publication that matches two filters of a client",
    ]
    assert configuration_lines(advise_on_broker(findings, "static")) == ()


def test_unknown_subscriptions_are_a_warning_with_a_remedy():
    advice = only(earlier_count=3)
    assert advice.severity is Severity.WARNING
    assert advice.problem.startswith("the broker had 3 subscriptions before this check")
    assert advise_on_broker(BrokerFindings(earlier_count=0)) == ()
    advice = only(has_history=True, is_observed=False, observer_problem="some reason")
    assert "some reason; SIGHUP does not help" in advice.problem
    advice = only(
        has_history=True, is_observed=False, observer_problem="some reason", restores_sessions=True
    )
    assert "some reason; neither SIGHUP nor a restart helps" in advice.problem
    assert advise_on_broker(BrokerFindings(has_history=True, is_observed=True)) == ()


def test_broker_that_is_open_to_the_network():
    advice = only(is_open_to_network=True)
    assert (advice.severity, advice.lines) == (Severity.WARNING, ())
    for remedy in ("allow_anonymous false", "acl_file", "$SYS/broker/log/#", "[broker] client_id"):
        assert remedy in advice.problem
    assert advise_on_broker(BrokerFindings(is_open_to_network=False)) == ()
