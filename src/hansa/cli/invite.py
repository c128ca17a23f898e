"""`hansa invite`: let one new node join a federation."""

import argparse
import re
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hansa.agent.links.settings import parse_address
from hansa.agent.settings import default_config_file, load_settings
from hansa.cli.arguments import Parser, path, whole_number
from hansa.cli.ca import add_claim_options, ca_directory, claims_of, warn_of_end
from hansa.console.terminal import say
from hansa.identity.authority import CertificateAuthority
from hansa.identity.credentials import load_issuer
from hansa.identity.enrolment import Invitation, InvitationTerms
from hansa.identity.renewal import RENEWAL_PORT

ENROLMENT_PORT = 10_501
TTL_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

EXAMPLES = """\
  hansa invite --name line-2 --address ca.example       prints the token for hansa join
  hansa invite --name office --address 192.0.2.7:10501 --ttl 10m --role observe \\
      --may-subscribe 'plant/a/#'

The issuer listens until the node has joined or the time is over. Keep the token secret:
the first node that uses it joins, and no other."""


def run(given: Sequence[str]) -> int:
    """Print a token and wait for its node; exit code 1 if it does not come in time."""
    parser = Parser(
        "hansa invite",
        "Invite one new node: print a token for `hansa join`, and sign the node's certificate\n"
        "when it comes. Runs on the machine with the directory of the authority. Exit code 1 if\n"
        "the node has not come in time.",
        EXAMPLES,
    )
    parser.add_argument(
        "--address", type=_host_and_port, metavar="HOST[:PORT]",
        help="address of this machine for the new node (default: the host of advertised_link in the"
        " settings of its agent, or its name; and --port)",
    )  # fmt: skip
    parser.add_argument(
        "--link", default="", metavar="HOST:PORT",
        help="agent that the new node links to (default: the agent of this machine, if it accepts"
        " links)",
    )  # fmt: skip
    parser.add_argument(
        "--config", type=path, metavar="FILE", help="settings of the agent of this machine"
        " (default: those that hansa init writes)",
    )  # fmt: skip
    parser.add_argument(
        "--listen", default="", metavar="HOST", help="address to listen on (default: all)"
    )
    parser.add_argument(
        "--port", type=whole_number(0, 65_535), default=ENROLMENT_PORT, metavar="N",
        help=f"port to listen on (default {ENROLMENT_PORT}); 0 takes a free one",
    )  # fmt: skip
    parser.add_argument(
        "--ttl", type=_duration, default=3_600.0, metavar="TIME",
        help="how long the invitation is open: 90s, 10m, 1h, 2d (default 1h)",
    )  # fmt: skip
    parser.add_argument("--ca", type=path, metavar="DIR", help="directory of the authority")
    parser.add_argument(
        "--issuer", default="", metavar="HOST[:PORT]", help="where the new node renews its"
        " certificate (default: the --address of hansa ca serve)",
    )  # fmt: skip
    add_claim_options(parser)
    args = parser.parse_args(given)
    authority = CertificateAuthority(ca_directory(args.ca))
    terms = InvitationTerms(claims_of(args, authority.ceiling), timedelta(days=args.days), args.ttl)
    authority.check_claims(terms.claims, datetime.now(UTC))
    warn_of_end(authority)
    agent = _agent_link(args.config)
    host, port = args.address or (parse_address(agent).host if agent else socket.gethostname(), 0)
    link = args.link or agent
    if link:
        parse_address(link)
    issuer = args.issuer or load_issuer(authority.directory)
    if issuer:
        issuer = str(parse_address(issuer, RENEWAL_PORT))
    invitation = Invitation(authority, terms, args.listen, args.port)
    try:
        token = invitation.token(host, port or invitation.port, link, issuer)
        print(token, flush=True)
        say(
            f"on the new machine: hansa init --join TOKEN, or hansa join TOKEN if its agent has"
            f" settings; waiting {args.ttl:.0f} s for it at {host}:{port or invitation.port}"
        )
        made = invitation.serve(on_refused=_report_refused)
    finally:
        invitation.close()
    if made is None:
        say("no node joined in time: the token is void")
        return 1
    say(f"node {made.node:016x} joined federation {authority.federation!r}")
    return 0


def _agent_link(config: Path | None) -> str:
    """Return where other nodes reach the agent of this machine; empty if it accepts no links."""
    file = config or default_config_file()
    if config is None and not file.exists():
        return ""
    return load_settings(file, {}).topology.advertised_link


def _report_refused(remote: str, reason: str) -> None:
    say(f"refused {remote}: {reason}")


def _host_and_port(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?", text)
    if not found or int(found[2] or 0) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST or HOST:PORT")
    return found[1].strip("[]"), int(found[2] or 0)


def _duration(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90s, 10m, 1h or 2d")
    return float(found[1]) * TTL_UNITS[found[2]]
