"""Mistakes that an operator makes, each with a part of the answer that says what to change.

The answer is one line on stderr and exit code 2. Mistakes that only a running agent notices are in
tests/agent/test_agent.py and tests/agent/test_dialling.py.
"""

import threading
from datetime import timedelta
from pathlib import Path

import pytest

from hansa.cli.main import main
from hansa.identity.authority import CertificateAuthority
from hansa.identity.certificates import Claims
from hansa.identity.enrolment import Invitation, InvitationTerms
from hansa.testbed.mosquitto import free_port

FILES = {
    "typo.toml": 'nam = "x"\n',
    "section.toml": "[brokr]\nport = 1883\n",
    "flat.toml": 'broker = "localhost"\n',
    "broken.toml": "name = \n",
    "type.toml": '[broker]\nport = "mqtt"\n',
    "open.toml": '[link]\nhost = "0.0.0.0"\n',
    "admin.toml": '[admin]\nhost = "0.0.0.0"\n',
    "neighbour.toml": '[link]\nneighbours = ["a:b:c"]\n',
    "tls.toml": '[broker]\ntls = true\ntls_ca = "missing.pem"\n',
    "range.toml": "[protocol]\nredundancy = 0\n",
    "state.toml": 'state = "/proc/nowhere"\n',
    "record.toml": 'record = ["$SYS/#"]\n',
    "there.toml": "",
}

MISTAKES = {
    "a file of settings that is not there": (
        "agent --config nowhere.toml",
        "cannot read nowhere.toml: No such file",
    ),
    "the file without --config": ("agent typo.toml", "did you mean --config typo.toml?"),
    "a setting misspelt": ("agent --config typo.toml", "'nam'; did you mean 'name'?"),
    "a section misspelt": ("agent --config section.toml", "'brokr'; did you mean 'broker'?"),
    "a section as a value": ("agent --config flat.toml", "write [broker], not broker = "),
    "a file that is no TOML": ("agent --config broken.toml", "at line 1, column 8"),
    "a word for a number": ("agent --config type.toml", "port must be a whole number, not 'mqtt'"),
    "a value out of range": ("agent --config range.toml", "redundancy must be from 1 to 16"),
    "links without a certificate": ("agent --config open.toml", "with hansa invite and hansa join"),
    "endpoints without a password": ("agent --config admin.toml", "tls_certificate and read_token"),
    "an address of IPv6 without brackets": (
        "agent --config neighbour.toml",
        "write an address of IPv6 as [address]:port",
    ),
    "a CA file that is not there": ("agent --config tls.toml", "tls_ca missing.pem: No such file"),
    "a state directory that cannot be": ("agent --config state.toml", "choose another one with"),
    "to record what never crosses": ("agent --config record.toml", "topics with $ stay with their"),
    "a command misspelt": ("statsu", "did you mean 'status'?"),
    "no agent at the address": ("status localhost:PORT", "is the agent running?"),
    "a context that was not saved": ("status --context plant", "hansa context add plant URL"),
    "an agent without its port": ("status https://plant", "write https://plant:8080"),
    "an agent instead of a topic": (
        "trace http://127.0.0.1:1",
        "name the topic before the agent: `hansa trace plant/temp URL`",
    ),
    "an agent instead of a broker": ("doctor http://127.0.0.1:1", "must be HOST:PORT, as in"),
    "two agents to ask": (
        "node ls 127.0.0.1:1 --context plant",
        "127.0.0.1:1 and --context plant both say which agents to ask: leave out one",
    ),
    "a password without a user": (
        "doctor localhost:1 --password x",
        "--password needs --username",
    ),
    "a user for a broker whose settings are in a file": (
        "doctor --config there.toml --username hansa",
        "--username is for HOST:PORT: with --config the settings in the file count",
    ),
    "a broker without its port": ("doctor localhost", "must be HOST:PORT, as in localhost:1883"),
    "no broker at the address": ("doctor localhost:PORT", "does a broker run there"),
    "no authority on this host": ("invite --ca nowhere", "make one with hansa ca init, or name"),
    "half of a token": ("join lakxMjcu", "copy the whole line"),
    "a second authority in one place": ("ca init --ca ca", "or name another directory with --ca"),
    "a node that was not enrolled": ("ca revoke south --ca ca", "see hansa ca show"),
    "to set up a host twice": ("init --config there.toml", "this host has an agent. Change that"),
    "to prepare the broker of another host": (
        "init --config new.toml --prepare-broker --broker 192.0.2.1:1883",
        "run it there, or prepare that broker by hand",
    ),
    "to join and to make a federation": (
        "init --config new.toml --join x --federation y",
        "give one of both",
    ),
    "a node after ls": ("node ls plant-1", "`hansa node show NODE` shows one; --agent URL says"),
    "agents that are no file and no address": (
        "doctor federation nowhere.json",
        "neither a ready file of `hansa up` nor the admin address",
    ),
    "to link to nothing": ("link add", "`hansa link add HOST:PORT`"),
    "to let nobody leave": ("node leave", "`hansa node leave NAME`"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (directory / name).write_text(text)
    assert main(["ca", "init", "plant", "--ca", str(directory / "ca")]) == 0
    return directory


@pytest.mark.parametrize("mistake", MISTAKES)
def test_answer_says_what_to_change(mistake, files, monkeypatch, capsys, tmp_path):
    command, expected = MISTAKES[mistake]
    monkeypatch.chdir(files)
    if "state" not in command:
        monkeypatch.setenv("HANSA_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(command.replace("PORT", str(free_port())).split()) == 2
    out, said = capsys.readouterr()
    assert (out, said.count("\n")) == ("", 1)
    assert expected in said


def test_broker_port_is_not_taken_for_an_agent(broker, capsys):
    assert main(["status", broker("allow_anonymous true")]) == 2
    assert "this is not an agent of Hansa: name its address of" in capsys.readouterr().err


def test_token_that_was_used_is_named_as_the_reason(tmp_path, capsys, files):
    terms = InvitationTerms(Claims("south"), timedelta(days=1), 30.0)
    invitation = Invitation(CertificateAuthority(files / "ca"), terms, "127.0.0.1", 0)
    token = invitation.token("127.0.0.1", invitation.port)
    serving = threading.Thread(target=invitation.serve)
    serving.start()
    assert main(["join", token, "--state", str(tmp_path / "south")]) == 0
    serving.join()
    invitation.close()
    assert main(["join", token, "--state", str(tmp_path / "thief")]) == 2
    assert "is hansa invite still running? A token can be used once" in capsys.readouterr().err
