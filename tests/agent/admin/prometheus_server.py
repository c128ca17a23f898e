"""A real Prometheus server of Debian's package, and its promtool."""

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hansa.testbed.mosquitto import free_port

DOWNLOADED = Path(__file__).parents[3] / ".prometheus"
"""Path where `./run test` installs the programs of Debian's package."""

ALERT_RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "hansa.rules.yml"

CONFIG = """
global:
  scrape_interval: {interval}
  scrape_timeout: {interval}
  evaluation_interval: {interval}
rule_files: {rule_files}
scrape_configs:
  - job_name: hansa
    static_configs:
      - targets: {targets}
"""

SECURE = """
    scheme: https
    tls_config: {{ca_file: {ca_file}}}
    authorization: {{credentials: {token}}}
"""


def find(program: str) -> str:
    found = shutil.which(program, path=os.pathsep.join([str(DOWNLOADED), os.environ["PATH"]]))
    if found is None:
        pytest.skip(f"there is no {program} here; Debian: the package prometheus")
    return found


def promtool(*arguments: object, directory: Path) -> None:
    command = [find("promtool"), *map(str, arguments)]
    said = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


def shorten_rules(directory: Path, window: str) -> Path:
    """Write the alert rules with seconds in place of minutes, so that a test need not wait."""
    text = re.sub(r"for: \d+[mh]", "for: 1s", ALERT_RULES.read_text())
    text = re.sub(r"\[\d+[mh]\]", f"[{window}]", text)
    text = re.sub(r"(start_time_seconds <) \d+", rf"\1 {window.removesuffix('s')}", text)
    file = directory / "short.rules.yml"
    file.write_text(re.sub(r"offset \d+[mh]", f"offset {window}", text))
    return file


class Prometheus:
    """A server that scrapes agents until the test ends."""

    def __init__(
        self,
        directory: Path,
        admin_ports: Sequence[int],
        rule_file: Path | None = None,
        ca_file: Path | None = None,
        token: str = "",
        interval: str = "500ms",
    ) -> None:
        """With `ca_file` it uses HTTPS and the token."""
        self.port = free_port()
        text = CONFIG.format(
            targets=[f"127.0.0.1:{port}" for port in admin_ports],
            rule_files=[] if rule_file is None else [str(rule_file)],
            interval=interval,
        )
        if ca_file is not None:
            text = text.rstrip() + SECURE.format(ca_file=ca_file, token=token)
        config = directory / "prometheus.yml"
        config.write_text(text)
        self.log_file = directory / "prometheus.log"
        options = {
            "config.file": config,
            "storage.tsdb.path": directory / "series",
            "web.listen-address": f"127.0.0.1:{self.port}",
        }
        with self.log_file.open("wb") as out:
            self.process = subprocess.Popen(
                [find("prometheus"), *(f"--{name}={value}" for name, value in options.items())],
                stdout=out,
                stderr=out,
                cwd=directory,
            )

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError) as error:
            assert self.process.poll() is None, self.log_file.read_text()
            raise TimeoutError from error  # it is not up yet

    def series(self, query: str) -> list[tuple[dict[str, str], float]]:
        found = self.get("query", query=query)["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def alerts(self) -> list[dict[str, str]]:
        """Return the labels of the alerts that fire."""
        found = self.get("alerts")["alerts"]
        return [each["labels"] for each in found if each["state"] == "firing"]

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
