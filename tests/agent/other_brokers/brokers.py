"""Third-party brokers from package registries, installed once and started as processes.

They are installed in `.brokers` beside `.venv`, by version. If an installation fails, the tests are
skipped with the reason.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.agent.live import eventually

from hansa.testbed.mosquitto import find_mosquitto, free_port

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".brokers"
INSTALL_TIMEOUT_S = 600
START_TIMEOUT_S = 180.0

HIVEMQ = "2025.5"
MOSQUITTO_SUITE = "forky"
"""Suite of Debian that has Mosquitto 2.1."""
NATS = "v2.11.9"
RMQTT = "0.24.0"
BUILD_TIMEOUT_S = 3_000
"""RMQTT is built from 360 crates, in six minutes on two cores that do other work, too."""

ERLANG = (
    *("asn1", "base", "crypto", "eldap", "inets", "mnesia", "os-mon", "parsetools"),
    *("public-key", "runtime-tools", "ssl", "syntax-tools", "tools", "xmerl"),
)
"""Packages of Erlang that RabbitMQ needs."""

ERL = """#!/bin/sh
ROOTDIR=$(cd "$(dirname "$0")/.." && pwd)
export ROOTDIR EMU=beam PROGNAME=erl BINDIR=$(echo "$ROOTDIR"/erts-*/bin)
exec "$BINDIR/erlexec" ${1+"$@"}
"""
"""Debian's script only works in /usr/lib."""

AMQTT = """
import asyncio, sys
from amqtt.broker import Broker

async def serve():
    plugin = "amqtt.plugins.authentication.AnonymousAuthPlugin"
    listener = {"type": "tcp", "bind": sys.argv[1]}
    config = {"listeners": {"default": listener}, "plugins": {plugin: {"allow_anonymous": True}}}
    await Broker(config).start()
    await asyncio.Event().wait()

asyncio.run(serve())
"""


def install(
    tool: str,
    command: Sequence[str],
    made: Path,
    timeout_s: float = INSTALL_TIMEOUT_S,
    **environment: str,
) -> None:
    """Run an installer in its target directory unless that exists."""
    if made.exists():
        return
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    try:
        subprocess.run(
            command,
            cwd=made.parent,
            env={**os.environ, **environment},
            check=True,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{' '.join(command)}: not finished after {timeout_s:.0f} s")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{' '.join(command)}: {error.stderr.strip()[-300:]}")


def aedes(port: int, directory: Path) -> list[str]:
    place = CACHE / "npm"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "aedes.mjs"):
        shutil.copy(HERE / name, place)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    install("npm", command, place / "node_modules")
    return ["node", str(place / "aedes.mjs"), str(port)]


def mosquitto_21() -> Path:
    """Return a script that starts Mosquitto 2.1 from Debian, extracted with its libraries: it needs
    a newer libc than this system may have."""
    place = CACHE / "mosquitto-2.1"
    script = place / "mosquitto"
    if script.exists():
        return script
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("Mosquitto 2.1 is extracted from packages of Debian: apt-get is missing")
    for name in ("lists/partial", "cache/archives/partial", "root"):
        (place / name).mkdir(parents=True, exist_ok=True)
    (place / "status").touch()
    uris = _run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
    uri = next((each for each in uris.split() if each.rstrip("/").endswith("/debian")), "")
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (place / "sources").write_text(f"deb [signed-by={keys}] {uri} {MOSQUITTO_SUITE} main\n")
    options = {
        "Dir::Etc::sourcelist": place / "sources",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferencesparts": "-",
        "Dir::State::lists": place / "lists",
        "Dir::State::status": place / "status",
        "Dir::Cache": place / "cache",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    _run(*apt, "update")
    _run(*apt, "install", "-y", "--no-install-recommends", "--download-only", "mosquitto")
    for package in (place / "cache/archives").glob("*.deb"):
        _run("dpkg-deb", "-x", str(package), str(place / "root"))
    shutil.rmtree(place / "cache")
    shutil.rmtree(place / "lists")
    (libraries,) = (place / "root/usr/lib").glob("*-linux-gnu")
    loader = next(libraries.glob("ld-linux*.so.*"))
    _run("/sbin/ldconfig", "-n", str(libraries))
    program = [
        str(loader),
        "--library-path",
        str(libraries),
        str(place / "root/usr/sbin/mosquitto"),
    ]
    found = subprocess.run([*program, "-h"], capture_output=True, text=True, check=False).stdout
    if "version 2.1" not in found:
        pytest.skip(f"Debian {MOSQUITTO_SUITE} has another Mosquitto than 2.1: {found[:60]}")
    script.write_text(f'#!/bin/sh\nexec {" ".join(program)} "$@"\n')
    script.chmod(0o755)
    return script


def _run(*command: str) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=INSTALL_TIMEOUT_S
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        pytest.skip(f"{' '.join(command[:2])}: {str(said).strip()[-300:]}")


def mosquitto_2_1(port: int, directory: Path) -> list[str]:
    return _mosquitto(str(mosquitto_21()), port, directory)


def mosquitto_2_0(port: int, directory: Path) -> list[str]:
    return _mosquitto(find_mosquitto(), port, directory)


def _mosquitto(program: str, port: int, directory: Path) -> list[str]:
    """A Mosquitto with the settings that its observer needs."""
    (directory / "mosquitto.conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nuser root\nsys_interval 1\n"
        f"persistence true\npersistence_location {directory}/\n"
        f"log_dest topic\nlog_dest file {log_file(directory)}\n"
        + "".join(f"log_type {kind}\n" for kind in LOG_TYPES)
    )
    return [program, "-c", str(directory / "mosquitto.conf")]


LOG_TYPES = ("subscribe", "unsubscribe", "notice", "error", "warning", "information")


def log_file(directory: Path) -> Path:
    """The log of a Mosquitto in a directory."""
    return directory / "mosquitto.log"


def hivemq(port: int, directory: Path) -> list[str]:
    """HiveMQ CE as a library, started by a small program that accepts every client."""
    place = CACHE / f"hivemq-{HIVEMQ}"
    place.mkdir(parents=True, exist_ok=True)
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    for name in ("pom.xml", "Start.java"):
        shutil.copy(HERE / "hivemq" / name, place)
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    install("mvn", [*copy, "-DoutputDirectory=lib"], place / "lib")
    (directory / "conf").mkdir(exist_ok=True)
    (directory / "conf/config.xml").write_text(
        f"<hivemq><listeners><tcp-listener><port>{port}</port>"
        "<bind-address>127.0.0.1</bind-address></tcp-listener></listeners>"
        "<anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics></hivemq>"
    )
    program = ["java", "-Xmx512m", "-cp", f"{place}/lib/*", str(place / "Start.java")]
    return [*program, str(directory)]


def nats(port: int, directory: Path) -> list[str]:
    place = CACHE / f"nats-{NATS}"
    place.mkdir(parents=True, exist_ok=True)
    program = place / "nats-server"
    module = f"github.com/nats-io/nats-server/v2@{NATS}"
    install("go", ["go", "install", module], program, GOBIN=str(place))
    (directory / "nats.conf").write_text(
        f'server_name: "one"\nlisten: "127.0.0.1:{free_port()}"\n'
        f'http: "127.0.0.1:{api_port(port)}"\n'
        f'jetstream {{ store_dir: "{directory}" }}\n'
        f'mqtt {{ listen: "127.0.0.1:{port}" }}\n'
    )
    return [str(program), "-c", str(directory / "nats.conf")]


def rabbitmq(port: int, directory: Path) -> list[str]:
    """RabbitMQ from Debian's packages, extracted: installing them would start a service."""
    place = CACHE / "rabbitmq"
    if not (place / "usr/lib/rabbitmq").exists():
        place.mkdir(parents=True, exist_ok=True)
        packages = ["rabbitmq-server", *(f"erlang-{name}" for name in ERLANG)]
        install("apt-get", ["apt-get", "-qq", "download", *packages], place / "usr")
        for package in place.glob("*.deb"):
            install("dpkg-deb", ["dpkg-deb", "-x", str(package), str(place)], place / package.stem)
            package.unlink()
        (place / "usr/lib/erlang/bin/erl").unlink()
        (place / "usr/lib/erlang/bin/erl").write_text(ERL)
        (place / "usr/lib/erlang/bin/erl").chmod(0o755)
    (server,) = (place / "usr/lib/rabbitmq/lib").glob("*/sbin/rabbitmq-server")
    (epmd,) = (place / "usr/lib/erlang").glob("erts-*/bin/epmd")
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{free_port()}\n"
        f"mqtt.listeners.tcp.1 = 127.0.0.1:{port}\nmqtt.allow_anonymous = true\n"
        f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {api_port(port)}\n"
    )
    (directory / "plugins").write_text("[rabbitmq_management,rabbitmq_mqtt].\n")
    names_port = free_port()
    variables = {
        "HOME": str(directory),
        "PATH": f"{place / 'usr/lib/erlang/bin'}:{os.environ['PATH']}",
        "ERL_EPMD_PORT": str(names_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_NODENAME": "one@localhost",
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_LOG_BASE": str(directory),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
    }
    run_both = '"$1" -port "$3" & "$2" & wait'
    assigned = [f"{name}={value}" for name, value in variables.items()]
    command = ["sh", "-c", run_both, "sh", str(epmd), str(server), str(names_port)]
    return ["env", *assigned, *command]


def rmqtt(port: int, directory: Path) -> list[str]:
    """RMQTT as a library, started by a small program with the plugins that the tests need."""
    place = CACHE / f"rmqtt-{RMQTT}"
    place.mkdir(parents=True, exist_ok=True)
    program = place / "rmqtt-for-tests"
    if not program.exists():
        if shutil.which("protoc") is None and "PROTOC" not in os.environ:
            pytest.skip("protoc is not installed: apt-get install protobuf-compiler")
        source = ["--manifest-path", str(HERE / "rmqtt/Cargo.toml")]
        built = place / "target/debug" / program.name
        log = place / "build.log"
        with suppress(OSError), open("/dev/tty", "w") as terminal:  # pytest captures the others
            terminal.write(f"\nbuilding RMQTT, some minutes: tail -f {log}\n")
        command = ["cargo", "build", *source, "--target-dir", str(place / "target")]
        logged = ["sh", "-c", '"$@" 2>"$0" || { tail -n 3 "$0" >&2; exit 1; }', str(log), *command]
        install("cargo", logged, program, BUILD_TIMEOUT_S, CARGO_INCREMENTAL="0")
        shutil.move(built, program)
        shutil.rmtree(place / "target")
    plugins = directory / "plugins"
    plugins.mkdir()
    (plugins / "rmqtt-http-api.toml").write_text(f'http_laddr = "127.0.0.1:{api_port(port)}"\n')
    (plugins / "rmqtt-sys-topic.toml").write_text("publish_qos = 0\n")
    return [str(program), str(port), str(plugins)]


def api_port(port: int) -> int:
    """The port of a broker's HTTP API; one for each MQTT port."""
    return _API_PORTS.setdefault(port, free_port())


_API_PORTS: dict[int, int] = {}


def amqtt(port: int, directory: Path) -> list[str]:
    return [sys.executable, "-c", AMQTT, f"127.0.0.1:{port}"]


KINDS = {
    "aedes": aedes,
    "NATS": nats,
    "RabbitMQ": rabbitmq,
    "RMQTT": rmqtt,
    "amqtt": amqtt,
    "HiveMQ": hivemq,
    "Mosquitto 2.0": mosquitto_2_0,
    "Mosquitto 2.1": mosquitto_2_1,
}


class Other:
    """A broker other than Mosquitto."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.port = free_port()
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._command = KINDS[kind](self.port, directory)
        self._log_file = directory / "log"
        self.start()

    def start(self) -> None:
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, start_new_session=True, cwd=self.directory
            )
        eventually(self._listens, f"{self.kind} listening", START_TIMEOUT_S)

    def _listens(self) -> bool:
        assert self._process.poll() is None, "it ended"
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except ConnectionRefusedError:
            return False
        return True

    def restart(self) -> None:
        """Stop it in order, and start it again."""
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait()
        eventually(self._has_ended, f"{self.kind} stopped", START_TIMEOUT_S)
        self.start()

    def _has_ended(self) -> bool:
        """Whether no process of the broker is left."""
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
