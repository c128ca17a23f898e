"""Names chosen by untrusted peers are escaped on the terminal and in the log (finding 21)."""

import json
import re
import subprocess
import sys

import pytest
from tests.agent.hostile.capture import Capture
from tests.agent.hostile.raw_peer import RawPeer, has_member, has_neighbour, unharmed
from tests.agent.live import Live, eventually

NAME = "\x1b]0;title\x07\x1b[31mred\x9b2J[/x][bold]\r\nforged line\u202e"
SHOWN = r"\x1b]0;title\x07\x1b[31mred\x9b2J[/x][bold]\r\nforged line\u202e"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


def hansa(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run a command as an operator does."""
    return subprocess.run(
        [sys.executable, "-m", "hansa.cli", *words],
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=60,
        check=False,
    )


def squeezed(text: str) -> str:
    """The text without line breaks inside table cells."""
    return re.sub(r"\s+", "", text)


def test_name_of_peer_is_shown_escaped(live: Live):
    node = live.nodes[1]
    with unharmed(live), RawPeer(node.link_port, name=NAME) as peer:
        peer.hello().announce_self()
        eventually(lambda: has_neighbour(node, peer) and has_member(node, peer), "a member")
        # `hansa status` ends with 1 while a known node does not answer: the peer never does.
        # The column of `hansa top` shows the first characters of a name.
        for command, exit_code, shown in (("status", 1, SHOWN), ("top", 0, SHOWN[:16])):
            done = hansa(command, node.admin_url)
            assert done.returncode == exit_code, done.stderr
            assert squeezed(shown) in squeezed(done.stdout)
            assert not CONTROL.search(done.stdout)
        done = hansa("status", node.admin_url, "--json")
        assert not CONTROL.search(done.stdout)
        assert NAME in [each["name"] for each in json.loads(done.stdout)["nodes"]]
        eventually(lambda: "forged line" in live.log(1), "the log names the peer")
    for number in range(len(live.nodes)):
        log = live.log(number)
        assert not CONTROL.search(log)
        assert not [line for line in log.splitlines() if line.startswith("forged")]


def test_reason_of_a_peer_is_logged_escaped(live: Live):
    node = live.nodes[0]
    with unharmed(live), RawPeer(node.link_port, name=NAME) as peer:
        peer.hello(federation="\x1b[2Jother\nforged line")
        eventually(lambda: "forged line" in live.log(0), "the refusal is logged")
    assert not CONTROL.search(live.log(0))
    assert not [line for line in live.log(0).splitlines() if line.startswith("forged")]


@pytest.mark.parametrize("format_name", ["text", "json", "dot", "svg"])
def test_name_from_a_manager_is_shown_escaped(format_name: str):
    node = {"id": 1, "name": NAME, "state": "up", "draining": False, "latency": None}

    def answer(request: bytes) -> bytes:
        body = json.dumps([node] if b"/nodes" in request else [], ensure_ascii=False).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    with Capture(answer) as manager:
        done = hansa(
            "topology", "show", f"http://127.0.0.1:{manager.port}", "--format", format_name
        )
    assert done.returncode == 0, done.stderr
    assert not CONTROL.search(done.stdout)
    assert "[/x]" in done.stdout


def test_refusal_of_a_manager_is_shown_escaped():
    body = json.dumps({"error": NAME}).encode()
    head = b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body)
    with Capture(lambda request: head + body) as manager:
        done = hansa("topology", "plan", f"http://127.0.0.1:{manager.port}")
    assert done.returncode == 2
    assert done.stderr == f"hansa: the manager says: {SHOWN}\n"
