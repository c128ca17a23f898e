"""URLs of servers in settings."""

import pytest

from hansa.agent.http_client import parse_server_url
from hansa.errors import UsageError


@pytest.mark.parametrize("url", ["http://a", "https://[::1]:8443/base", "http://10.0.0.1:80/"])
def test_url_of_a_server_is_parsed(url):
    assert parse_server_url("[rest] url", url).geturl() == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a:8080",
        "ftp://a",
        "http://",
        "http://[::1",
        "http://a:0",
        "http://a:port",
        "http://a:99999",
        "http://a?query",
        "http://a#fragment",
        "http://a b",
        "http://a/\n",
    ],
)
def test_other_text_is_refused(url):
    with pytest.raises(UsageError, match=r"^\[rest\] url must be http://HOST:PORT or https://"):
        parse_server_url("[rest] url", url)


def test_refusal_does_not_show_the_password():
    with pytest.raises(UsageError) as raised:
        parse_server_url("[rest] url", "https://me:secret@example.org")
    assert str(raised.value) == "[rest] url must have no user and password"
