"""Certificates of another authority, signed with OpenSSL as docs/how-to/secure.md says."""

import re
import subprocess
from pathlib import Path

import pytest
from tests.identity.certified import now

from hansa.identity.authority import make_request
from hansa.identity.certificates import Claims
from hansa.identity.credentials import Credentials, install, parse_bundle
from hansa.identity.keys import KEY_FILE, create_key
from hansa.protocol.model import node_id

SECURE = Path(__file__).parents[2] / "docs" / "how-to" / "secure.md"
AUTHORITY = "basicConstraints = critical, CA:TRUE\nkeyUsage = critical, keyCertSign, cRLSign\n"


def openssl(directory: Path, command: str) -> None:
    subprocess.run(["openssl", *command.split()], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def company(tmp_path: Path) -> Path:
    """A root with RSA and an authority below it."""
    (tmp_path / "authority.ext").write_text(AUTHORITY)
    for name in ("root", "issuing"):
        request = f"req -new -newkey rsa:2048 -nodes -keyout {name}.key -subj /CN={name}"
        openssl(tmp_path, f"{request} -out {name}.csr")
    sign = "x509 -req -days 90 -extfile authority.ext -set_serial 1"
    openssl(tmp_path, f"{sign} -in root.csr -signkey root.key -out root.pem")
    below = "-in issuing.csr -CA root.pem -CAkey root.key -out issuing.pem"
    openssl(tmp_path, f"{sign} {below}")
    return tmp_path


def sign_as_documented(company: Path, has_extension: bool) -> Credentials:
    """Follow the how-to page for a new node, with its id in place of the example's."""
    text = SECURE.read_text().partition("## With a company's authority")[2]
    extensions = text.partition("<<'END'\n")[2].partition("END\n")[0]
    (company / "node").mkdir()
    key = create_key(company / "node" / KEY_FILE)
    node = f"{node_id(key.public_key().public_bytes_raw()):016x}"
    extensions = re.sub(r"(hansa://plant/)[0-9a-f]{16}", rf"\g<1>{node}", extensions)
    if not has_extension:
        extensions = re.sub(r"^2\.25\..*\n", "", extensions, flags=re.MULTILINE)
    (company / "line-2.ext").write_text(extensions)
    (company / "line-2.csr").write_bytes(make_request(key))
    command = re.search(r"^openssl (x509 .*)$", text, flags=re.MULTILINE)
    assert command is not None
    openssl(company, command[1])
    files = [company / name for name in ("line-2.crt", "issuing.pem", "root.pem")]
    bundle = b"".join(file.read_bytes() for file in files)
    return install(company / "node", parse_bundle(bundle, "line-2.pem"), now())


def test_certificate_with_the_documented_extension_has_its_roles_and_topics(company):
    made = sign_as_documented(company, has_extension=True)
    topics = ("plant/#",)
    expected = Claims("", ("relay", "core"), may_publish=topics, may_subscribe=topics)
    assert made.certificate.claims == expected
    assert made.federation == "plant"


def test_certificate_without_the_extension_relays(company):
    made = sign_as_documented(company, has_extension=False)
    assert made.certificate.claims == Claims(roles=("relay",))
