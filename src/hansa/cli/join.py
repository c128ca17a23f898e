"""`hansa join`: get the certificate of the agent on this machine."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from hansa.cli.arguments import Parser, path, read_secret
from hansa.cli.ca import state_directory
from hansa.console.terminal import say
from hansa.errors import UsageError
from hansa.identity.credentials import CERTIFICATE_FILE, Credentials, install, parse_bundle
from hansa.identity.enrolment import join_with_token, parse_token

EXAMPLES = """\
  hansa join TOKEN                       with a token of hansa invite
  hansa join TOKEN --state /var/lib/hansa/plant-1
  hansa join -                           reads the token from standard input
  hansa join line-2.pem                  with a file of hansa ca sign or hansa ca renew

Other users of this machine see the arguments of a command while it runs, tokens included;
`-` hides the token from them.

A running agent uses a renewed certificate within seconds; one that had none must be restarted."""


def run(given: Sequence[str]) -> int:
    """Install a certificate in the state directory of the agent."""
    parser = Parser(
        "hansa join",
        "Get a certificate for the agent of this machine, from the issuer of a token or from a\n"
        "file, and install it with the federation's roots in the agent's state directory. The\n"
        "private key is made here if there is none, and stays here.",
        EXAMPLES,
    )
    parser.add_argument(
        "source", metavar="TOKEN|FILE", help="token, - to read it from standard input, or file with"
        " a certificate",
    )  # fmt: skip
    parser.add_argument(
        "--state", type=path, metavar="DIR", help="state directory of the agent (default: that of"
        " hansa agent, or HANSA_STATE)",
    )  # fmt: skip
    args = parser.parse_args(given)
    directory = state_directory(args.state)
    made = _join(args.source, directory)
    certificate = made.certificate
    text = (
        f"node {certificate.node:016x} is a member of federation {made.federation!r} until"
        f" {certificate.not_after:%Y-%m-%d}: {directory / CERTIFICATE_FILE}"
    )
    say(text)
    return 0


def _join(source: str, directory: Path) -> Credentials:
    now = datetime.now(UTC)
    if source.endswith(".pem") or Path(source).exists():
        try:
            bundle = parse_bundle(Path(source).read_bytes(), source)
        except OSError as error:
            raise UsageError(f"cannot read {source}: {error.strerror}") from error
        return install(directory, bundle, now)
    return join_with_token(directory, parse_token(read_secret(source)), now)
