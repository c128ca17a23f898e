"""Preparing a Mosquitto: what is added, what is refused, and that a second time adds nothing."""

import getpass
import subprocess
from pathlib import Path

import pytest
from tests.agent.live import Client

from hansa.errors import UsageError
from hansa.setup.mosquitto import MosquittoSetup
from hansa.testbed.mosquitto import free_port

DEBIAN = "persistence true\nlog_dest file {0}/log/mosquitto.log\ninclude_dir {0}/conf.d\n"
LOGIN = "listener {1}\nallow_anonymous false\npassword_file {0}/passwd\nacl_file {0}/acl\n"


class Etc:
    """A directory as /etc/mosquitto, with its log directory."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.port = directory / "mosquitto", free_port()
        for name in ("log", "conf.d"):
            (self.directory / name).mkdir(parents=True)
        self.write("mosquitto.conf", DEBIAN)
        self.write("conf.d/site.conf", LOGIN)
        self.write("passwd", "sensor:x\n")
        self.write("acl", "user sensor\ntopic write plant/#")  # without a line end

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text.format(self.directory, self.port))

    def read(self, name: str) -> str:
        return (self.directory / name).read_text()

    def setup(self) -> MosquittoSetup:
        return MosquittoSetup(self.directory / "mosquitto.conf")

    def prepare(self) -> list[str]:
        setup = self.setup()
        if not setup.has_user("hansa"):
            setup.add_user("hansa", "secret")
        setup.add_rights("hansa", ["plant/#"])
        setup.add_settings()
        setup.open_log_file()
        return setup.changes


@pytest.fixture
def etc(tmp_path: Path) -> Etc:
    return Etc(tmp_path)


def test_user_rights_and_settings_are_added(etc):
    etc.prepare()
    sensor, hansa = etc.read("passwd").splitlines()
    assert sensor == "sensor:x"
    assert hansa.startswith("hansa:$7$101$")
    assert etc.read("acl") == (
        "user sensor\ntopic write plant/#\n\nuser hansa\ntopic read $SYS/#\n"
        "topic readwrite plant/#\ntopic readwrite hansa/doctor/#\n"
    )
    assert set(etc.read("conf.d/hansa.conf").splitlines()) == {
        *("# for hansa", "log_dest topic", "connection_messages true"),
        *(f"log_type {kind}" for kind in ("subscribe", "unsubscribe", "notice", "error")),
        *("log_type warning", "log_type information"),
        *("max_queued_messages 100000", "max_inflight_messages 100"),
    }
    assert (etc.directory / "log/mosquitto.log").stat().st_mode & 0o777 == 0o640


def test_second_time_changes_nothing(etc):
    assert len(etc.prepare()) > 0
    assert etc.prepare() == []


def test_changed_files_are_kept_as_they_were(etc):
    etc.prepare()
    assert etc.read("passwd.before-hansa") == "sensor:x\n"
    assert etc.read("acl.before-hansa") == "user sensor\ntopic write plant/#"


def test_values_that_must_change_are_replaced_in_the_configuration(etc):
    etc.write("mosquitto.conf", DEBIAN + "max_queued_messages 10\n")
    etc.prepare()
    text = etc.read("mosquitto.conf")
    assert "# max_queued_messages 10\n" in text
    assert "\nmax_queued_messages 100000\n" in text
    assert not (etc.directory / "conf.d/hansa.conf").exists()


def test_broker_that_needs_no_login_gets_no_user(etc):
    assert etc.setup().requires_login
    etc.write("conf.d/site.conf", "listener {1}\nallow_anonymous true\n")
    assert not etc.setup().requires_login
    etc.write("conf.d/site.conf", "")
    assert not etc.setup().requires_login


def test_log_rotation_keeps_the_mode(etc):
    rotation = etc.directory.parent / "logrotate.d" / "mosquitto"
    rotation.parent.mkdir()
    rotation.write_text("/var/log/mosquitto/mosquitto.log {\n\tnocreate\n}\n")
    etc.prepare()
    assert rotation.read_text().split()[2:] == ["create", "0640", "mosquitto", "mosquitto", "}"]
    assert list(rotation.parent.iterdir()) == [rotation]  # logrotate would read a copy, too


@pytest.mark.parametrize(
    ("site", "problem"),
    [
        ("listener {1}\nallow_anonymous false\n", "has no password_file: give the agent a user"),
        ("password_file {0}/passwd\npassword_file {0}/other\n", "has several password_file"),
        ("password_file passwd\n", "'passwd' is relative to the directory where the broker was"),
        ("password_file {0}/missing\n", "cannot read .*missing: No such file"),
    ],
)
def test_login_that_cannot_be_changed_is_refused(etc, site, problem):
    etc.write("conf.d/site.conf", site)
    with pytest.raises(UsageError, match=problem):
        etc.prepare()


def test_real_mosquitto_accepts_user_and_settings(etc, mosquitto):
    etc.write("passwd", "")
    etc.write("conf.d/user.conf", f"user {getpass.getuser()}\n")
    etc.prepare()
    command = [mosquitto, "-c", str(etc.directory / "mosquitto.conf")]
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=etc.directory, **output) as broker:  # type: ignore[call-overload]
        try:
            while True:
                try:
                    client = Client(etc.port, username="hansa", password=b"secret")
                    break
                except ConnectionRefusedError:
                    assert broker.poll() is None
            client.subscribe("$SYS/broker/log/M/subscribe").close()
        finally:
            broker.terminate()
