"""`hansa ca`: from an authority to a certified node, offline."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from hansa.cli.main import main
from hansa.identity.authority import CertificateAuthority
from hansa.identity.credentials import (
    CERTIFICATE_FILE,
    install,
    load_credentials,
    load_issuer,
)
from hansa.identity.keys import KEY_FILE
from hansa.identity.renewal import request_renewal
from hansa.identity.tls import make_contexts


@pytest.fixture
def ca(tmp_path, capsys):
    """Runs `hansa ca` with the authority of this test; returns exit code, stdout and stderr."""

    def run(*given: str) -> tuple[int, str, str]:
        code = main(["ca", *given, "--ca", str(tmp_path / "ca")])
        return code, *capsys.readouterr()

    return run


def test_node_is_certified_by_request_and_file(ca, tmp_path):
    assert ca("init", "plant")[0] == 0
    state, request, signed = (str(tmp_path / name) for name in ("node", "node.csr", "node.pem"))
    code, out, said = ca("request", "--state", state, "--out", request)
    assert (code, out) == (0, "")
    node = said.removeprefix("hansa: request of node ").strip()
    observe = ("--role", "observe", "--may-subscribe", "a/#", "--may-subscribe", "b/+")
    code, out, said = ca("sign", request, "--name", "line-2", *observe, "--out", signed)
    assert (code, out) == (0, "")
    assert said.startswith(f"hansa: certificate of node {node}, ")
    code, shown, _ = ca("show")
    assert all(word in shown for word in ("federation plant", "line-2", "observe", "a/#, b/+"))
    assert (code, "revoked" in shown) == (0, False)


def test_certificates_are_listed_as_json(ca, tmp_path):
    ca("init", "plant")
    ca("sign", "--state", str(tmp_path / "node"), "--name", "a", "--may-publish", "a/#")
    shown = json.loads(ca("show", "--json")[1])
    (made,) = shown["certificates"]
    assert (shown["federation"], shown["kind"]) == ("plant", "root")
    assert (made["name"], made["may_publish"], made["state"]) == ("a", ["a/#"], "valid")


def test_agent_of_this_machine_is_certified_in_place(ca, tmp_path, capsys):
    ca("init", "plant")
    code, _, said = ca("sign", "--state", str(tmp_path / "node"), "--name", "a", "--days", "10")
    assert (code, str(tmp_path / "node" / CERTIFICATE_FILE) in said) == (0, True)
    made = load_credentials(tmp_path / "node", tmp_path / "node" / KEY_FILE, datetime.now(UTC))
    assert (made.federation, made.certificate.claims.name) == ("plant", "a")
    assert ca("renew", "a", "--state", str(tmp_path / "node"))[0] == 0
    code, revoked, said = ca("revoke", "a")
    assert (code, revoked.startswith("-----BEGIN X509 CRL")) == (0, True)
    assert said.startswith("hansa: revoked 2 certificates of node ")
    assert ca("show")[1].count("revoked") == 2


def test_root_is_rotated(ca):
    ca("init")
    assert ca("renew", "--root")[2].startswith("hansa: new root made: renew the certificate")
    assert "1 earlier roots are not trusted any more" in ca("renew", "--root", "--drop-old")[2]


def test_intermediate_authority_signs_by_its_directory_alone(ca, tmp_path, capsys):
    ca("init", "plant")
    site, state = str(tmp_path / "site"), str(tmp_path / "node")
    code, _, said = ca("intermediate", "site-1", "--out", site, "--may-publish", "site-1/#")
    assert (code, "intermediate authority site-1 of federation 'plant' in " in said) == (0, True)
    (tmp_path / "ca").rename(tmp_path / "away")

    def by_site(*given: str) -> tuple[int, str, str]:
        return main(["ca", *given, "--ca", site]), *capsys.readouterr()

    code, _, said = by_site("sign", "--state", state, "--name", "a")
    assert code == 0, said
    made = load_credentials(tmp_path / "node", tmp_path / "node" / KEY_FILE, datetime.now(UTC))
    assert (made.certificate.claims.may_publish, len(made.chain)) == (("site-1/#",), 2)
    code, _, said = by_site("sign", "--state", state, "--may-publish", "#")
    assert (code, "its authority may not grant to publish '#', only site-1/#" in said) == (2, True)
    code, shown, _ = by_site("show")
    assert (code, "intermediate valid until" in shown) == (0, True)
    code, revoked, _ = by_site("revoke", "a")
    assert (code, revoked.count("X509 CRL"), revoked.count("CERTIFICATE")) == (0, 2, 2)
    assert by_site("renew", "--root")[0] == 2
    (tmp_path / "away").rename(tmp_path / "ca")
    assert "intermediate" in ca("show")[1]
    code, revoked, said = ca("revoke", "site-1")
    assert (code, revoked.count("X509 CRL")) == (0, 2)
    assert said.startswith("hansa: revoked 1 certificates of the intermediate site-1: nodes that")
    code, _, said = ca("intermediate", "site-1", "--out", site)
    assert (code, "is revoked: use a new directory" in said) == (2, True)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["intermediate", "x"], "intermediate needs a name, and --out DIR"),
        (["sign"], "sign needs a file with a request, or --state for an agent here"),
        (["sign", "/nonexistent"], "cannot read /nonexistent: No such file or directory"),
        (["renew"], "renew needs the name or id of a node, --due, or --root"),
        (["revoke"], "revoke needs the name or id of a node"),
        (["revoke", "x"], "no certificate was issued to node 'x'; see hansa ca show"),
        (["init", "x"], "already holds a key or an authority: it is kept"),
        (["show", "--role", "king"], "there is no 'king'; there are relay, core, observe, manager"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(ca, given, problem):
    ca("init")
    code, out, said = ca(*given)
    assert (code, out, said.count("\n")) == (2, "", 1)
    assert problem in said


@pytest.mark.parametrize("name", ["a b", "a/b", "../a", "a\nb", "\x1b[31m", "\u202ea", " "])
def test_federation_name_with_blank_slash_or_control_character_is_refused(ca, name, tmp_path):
    code, out, said = ca("init", name)
    assert (code, out, said.count("\n")) == (2, "", 1)
    assert "must have no blanks, slashes or control characters" in said
    assert not (tmp_path / "ca").exists()


def test_node_name_with_control_character_is_refused(ca, tmp_path):
    ca("init")
    assert ca("sign", "--state", str(tmp_path / "a"), "--name", "a\x1b[31m") == (
        2, "", "hansa: --name 'a\\x1b[31m': a name has no control characters\n",
    )  # fmt: skip


def test_due_certificates_are_renewed_into_a_directory(ca, tmp_path):
    ca("init", "plant")
    for name, days in (("soon", "1"), ("later", "365"), ("gone", "1")):
        ca("sign", "--state", str(tmp_path / name), "--name", name, "--days", days)
    ca("revoke", "gone")
    soon = load_credentials(tmp_path / "soon", tmp_path / "soon" / KEY_FILE, datetime.now(UTC))
    code, _, said = ca("renew", "--due", "--out", str(tmp_path / "renewed"))
    assert (code, said) == (0, ""), "the certificate of a day is due in its last third"
    made = CertificateAuthority(tmp_path / "ca")
    after = soon.certificate.not_after - timedelta(hours=1)
    assert [each.claims.name for each in made.certificates_ending(after)] == ["soon"]


def test_renewed_certificate_of_a_timer_can_be_installed(ca, tmp_path, monkeypatch, capsys):
    ca("init", "plant")
    present = datetime.now(UTC)
    monkeypatch.setattr("hansa.cli.ca._now", lambda: present - timedelta(hours=23))
    ca("sign", "--state", str(tmp_path / "node"), "--name", "line-2", "--days", "1")
    monkeypatch.setattr("hansa.cli.ca._now", lambda: present)
    code, _, said = ca("renew", "--due", "--out", str(tmp_path / "renewed"))
    assert (code, "(line-2): renewed, valid until" in said) == (0, True)
    (file,) = (tmp_path / "renewed").iterdir()
    assert main(["join", str(file), "--state", str(tmp_path / "node")]) == 0
    capsys.readouterr()
    made = load_credentials(tmp_path / "node", tmp_path / "node" / KEY_FILE, present)
    assert made.certificate.not_after > present + timedelta(days=300)
    assert ca("renew", "--due", "--out", str(tmp_path / "renewed"))[2] == ""


def test_renewal_of_due_certificates_needs_a_directory(ca, tmp_path):
    ca("init", "plant")
    code, _, said = ca("renew", "--due")
    assert (code, "--out DIR" in said) == (2, True)
    (tmp_path / "file").touch()
    code, _, said = ca("renew", "--due", "--out", str(tmp_path / "file"))
    assert (code, "cannot use" in said) == (2, True)


def test_issuer_serves_and_names_itself_in_invitations(ca, tmp_path, capsys):
    """From the first command to the renewed certificate, each part as a process or command."""
    ca("init", "plant")
    directory, state = str(tmp_path / "ca"), tmp_path / "node"
    serve = ["ca", "serve", "--listen", "127.0.0.1", "--port", "0", "--address", "127.0.0.1"]
    with subprocess.Popen(
        [sys.executable, "-m", "hansa.cli", *serve, "--ca", directory],
        stderr=subprocess.PIPE,
        text=True,
    ) as issuer:
        try:
            assert issuer.stderr
            port = int(issuer.stderr.readline().rsplit(" ", 1)[1])
            invite = ["invite", "--listen", "127.0.0.1", "--port", "0", "--address", "127.0.0.1"]
            with subprocess.Popen(
                [sys.executable, "-m", "hansa.cli", *invite, "--ca", directory],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            ) as invitation:
                assert invitation.stdout
                token = invitation.stdout.readline().strip()
                assert main(["join", token, "--state", str(state)]) == 0
                assert invitation.wait(30) == 0
            assert load_issuer(state) == f"127.0.0.1:{port}"
            CertificateAuthority(tmp_path / "ca").renew_root(datetime.now(UTC))
            member = load_credentials(state, state / KEY_FILE, datetime.now(UTC))
            bundle = request_renewal(make_contexts(member), "127.0.0.1", port, datetime.now(UTC))
            install(state, bundle, datetime.now(UTC))
            assert "renewed, valid until" in issuer.stderr.readline()
        finally:
            issuer.terminate()
        assert issuer.wait(30) == 0
        assert issuer.stderr.read() == "hansa: stopped: 1 renewed\n"


def test_issuer_needs_an_address_that_can_be_one(ca, tmp_path):
    ca("init", "plant")
    code, _, said = ca("serve", "--listen", "127.0.0.1", "--port", "0", "--address", "a b")
    assert (code, "a host has no blanks" in said) == (2, True)
