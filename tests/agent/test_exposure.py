"""Listening beyond loopback, and the Host header of requests."""

import pytest
from tests.identity.certified import certify, make_authority

from hansa.agent.exposure import HostRule, host_of, is_loopback
from hansa.agent.settings import load_settings
from hansa.errors import UsageError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_consent(host):
    assert is_loopback(host)
    settings = load_settings(None, {"HANSA_LINK_HOST": host, "HANSA_ADMIN_HOST": host})
    assert settings.exposure_text == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "node.example"])
@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_links_beyond_loopback_need_consent(host, transport):
    given = {"HANSA_LINK_HOST": host, "HANSA_LINK_TRANSPORT": transport}
    with pytest.raises(UsageError) as error:
        load_settings(None, given)
    said = str(error.value)
    assert f"[link] host {host!r} is reachable from other machines" in said
    for remedy in ("127.0.0.1", "hansa join", "[link] insecure = true"):
        assert remedy in said
    settings = load_settings(None, {**given, "HANSA_LINK_INSECURE": "true"})
    assert settings.exposure_text.startswith(f"links on {host}: reachable from other machines")


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_links_beyond_loopback_need_no_consent_with_a_certificate(tmp_path, transport):
    certify(make_authority(tmp_path / "ca"), tmp_path / "state")
    given = {"HANSA_LINK_HOST": "0.0.0.0", "HANSA_LINK_TRANSPORT": transport}
    for name in ("HANSA_STATE", "HANSA_SECURITY_DIRECTORY"):
        settings = load_settings(None, {**given, name: str(tmp_path / "state")})
        assert settings.exposure_text == ""


def test_links_through_brokers_open_no_port():
    settings = load_settings(None, {"HANSA_LINK_HOST": "0.0.0.0", "HANSA_LINK_TRANSPORT": "mqtt"})
    assert settings.exposure_text == ""


def test_status_pages_beyond_loopback_need_consent():
    given = {"HANSA_ADMIN_HOST": "0.0.0.0"}
    with pytest.raises(UsageError, match=r"\[admin\] insecure = true"):
        load_settings(None, given)
    settings = load_settings(None, {**given, "HANSA_ADMIN_INSECURE": "true"})
    assert settings.exposure_text.startswith("HTTP endpoints on 0.0.0.0: reachable")


@pytest.mark.parametrize(
    ("bound", "names", "header", "is_accepted"),
    [
        ("127.0.0.1", (), None, True),
        ("127.0.0.1", (), "127.0.0.1:8080", True),
        ("127.0.0.1", (), "localhost", True),
        ("127.0.0.1", (), "LOCALHOST.:8080", True),
        ("127.0.0.1", (), "[::1]:8080", True),
        ("127.0.0.1", (), "attacker.example", False),
        ("127.0.0.1", (), "attacker.example:8080", False),
        ("127.0.0.1", (), "localhost.attacker.example", False),
        ("127.0.0.1", (), "127.0.0.1.attacker.example", False),
        ("127.0.0.1", (), "127.0.0.1@attacker.example", False),
        ("127.0.0.1", (), "", False),
        ("127.0.0.1", (), "[", False),
        ("127.0.0.1", ("Proxy.example",), "proxy.example:443", True),
        ("127.0.0.1", ("proxy.example",), "attacker.example", False),
        ("0.0.0.0", (), "anything.example", True),
        ("0.0.0.0", ("node.example",), "anything.example", False),
        ("192.0.2.1", ("node.example",), "192.0.2.1:80", True),
    ],
)
def test_host_header_is_checked(bound, names, header, is_accepted):
    assert HostRule(bound, names).accepts(header) is is_accepted


def test_host_without_its_port():
    assert [host_of(text) for text in ("A.example:1", "[::1]:2", "b")] == ["a.example", "::1", "b"]
