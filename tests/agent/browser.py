"""A real Chromium, driven over its debugging pipe: no driver and no library is needed."""

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.agent.live import PATIENCE

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
    " --disable-background-networking --disable-component-update --remote-debugging-pipe"
)
COMMANDS_FD, EVENTS_FD = 3, 4
"""Where Chromium reads commands and writes events."""


class Browser:
    """One browser with one page."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._commands = os.pipe()
        self._events, events = os.pipe()
        # Away from 3 and 4, so that neither dup2 below overwrites the other's source.
        high = [fcntl.fcntl(each, fcntl.F_DUPFD, 64) for each in (commands, events)]

        def place_pipes() -> None:
            os.dup2(high[0], COMMANDS_FD)
            os.dup2(high[1], EVENTS_FD)

        self._process = subprocess.Popen(
            [program, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=place_pipes,
            pass_fds=(COMMANDS_FD, EVENTS_FD),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for each in (commands, events, *high):
            os.close(each)
        self._number = 0
        self._unread = b""
        self.problems: list[str] = []
        """Errors on the console, exceptions, and violations of the content security policy."""
        self.requests: list[str] = []
        """Addresses of all requests."""
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> Any:
        """Send a command; return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._read_message(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note_event(answer)

    def _read_message(self, deadline: float) -> Any:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._events], [], [], deadline - time.monotonic())
            assert ready, "Chromium does not answer"
            data = os.read(self._events, 1 << 20)
            assert data, "Chromium has ended"
            self._unread += data
        text, _, self._unread = self._unread.partition(b"\0")
        return json.loads(text)

    def _note_event(self, event: Any) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
                self.problems.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.problems.append(f"{params['entry']['text']} {params['entry'].get('url')}")
            case _:
                pass

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def visit(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int, is_dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._events)
