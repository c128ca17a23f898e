"""`hansa ca`: the certificate authority of a federation."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.markup import escape

from hansa.agent.links.settings import parse_address
from hansa.agent.settings import default_state_directory
from hansa.cli.arguments import Parser, one_of, path, whole_number
from hansa.cli.target import print_json
from hansa.console.terminal import console, make_table, say
from hansa.errors import UsageError
from hansa.identity.authority import Bundle, CertificateAuthority, make_request, name_of
from hansa.identity.certificates import DEFAULT_ROLES, ROLES, Claims, NodeCertificate, ceiling_of
from hansa.identity.credentials import CERTIFICATE_FILE, install, save_issuer
from hansa.identity.keys import KEY_FILE, create_key, load_key, node_of
from hansa.identity.renewal import RENEWAL_PORT, Issuer
from hansa.journal.disk import replace_file
from hansa.printable import printable
from hansa.protocol.settings import ProtocolSettings

DAYS_DEFAULT, DAYS_MAX = 365, 3650

EXAMPLES = """\
  hansa ca init plant                             make the authority of the federation `plant`
  hansa ca sign --state /var/lib/hansa/agent      certify the agent of this machine
  hansa ca request --out node.csr                 on another machine: a request for its agent
  hansa ca sign node.csr --name line-2 --out line-2.pem
                                                  with the authority: sign it
  hansa join line-2.pem                           on that machine again: install the result
  hansa ca revoke line-2 --out revoked.pem        exclude a node; copy the list to the others
  hansa ca renew line-2 --out line-2.pem          the same claims, valid for another year
  hansa ca renew --due --out renewed              all that end within 30 days, for a timer
  hansa ca serve --address ca.example             agents renew their certificates here by themselves
  hansa ca intermediate site-1 --out site-1 --may-publish 'site-1/#'
                                                  an authority for one site: a directory for --ca
  hansa ca renew --root                           a new root; the old one stays valid meanwhile
  hansa ca show                                   all certificates

`hansa invite` and `hansa join` enrol a node over the network instead."""


def run(given: Sequence[str]) -> int:
    """Run one action."""
    parser = Parser(
        "hansa ca",
        "Make the certificate authority of a federation, and sign, renew, revoke and list the\n"
        "certificates of its nodes. The directory of the authority holds its private key, whose\n"
        "holder decides who is a member: keep it, and a copy, away from the nodes.",
        EXAMPLES,
    )
    parser.add_argument("action", type=one_of(ACTIONS), help=", ".join(ACTIONS))
    parser.add_argument(
        "target", nargs="?", default="",
        help="init: name of the federation; sign: file with a request; renew, revoke: name or id of"
        " a node; intermediate, revoke: name of an intermediate authority",
    )  # fmt: skip
    parser.add_argument(
        "--ca", type=path, metavar="DIR", help="directory of the authority (default: ca beside"
        " the state directory)",
    )  # fmt: skip
    parser.add_argument(
        "--state", type=path, metavar="DIR", help="sign, renew: the state directory of an agent on"
        " this machine, which gets the certificate; request: the one whose key is used",
    )  # fmt: skip
    parser.add_argument(
        "--out",
        type=path,
        metavar="FILE",
        help="file to write; standard output without it; intermediate, renew --due: a directory",
    )
    add_claim_options(parser)
    parser.add_argument(
        "--root", action="store_true", help="renew: make a new root instead; sign nodes again, then"
        " use --drop-old",
    )  # fmt: skip
    parser.add_argument(
        "--due", action="store_true", help="renew: all nodes whose certificates end within 30 days,"
        " one file per node in the directory --out",
    )  # fmt: skip
    parser.add_argument(
        "--drop-old", action="store_true", help="renew --root: stop trusting earlier roots, without"
        " making a new one",
    )  # fmt: skip
    parser.add_argument(
        "--listen", default="", metavar="HOST", help="serve: address to listen on (default: all)"
    )
    parser.add_argument(
        "--port", type=whole_number(0, 65_535), default=RENEWAL_PORT, metavar="N",
        help=f"serve: port to listen on (default {RENEWAL_PORT}); 0 takes a free one",
    )  # fmt: skip
    parser.add_argument(
        "--address", default="", metavar="HOST[:PORT]", help="serve: where agents reach this issuer"
        "; later invitations tell new nodes",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="show: print JSON")
    args = parser.parse_args(given)
    ACTIONS[args.action](args)
    return 0


def add_claim_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that decide what a certificate allows."""
    parser.add_argument("--name", default="", help="name of the node in lists of the authority")
    parser.add_argument(
        "--role", action="append", type=one_of(ROLES), metavar="|".join(ROLES),
        help=f"what the node may do, repeated for several (default {' and '.join(DEFAULT_ROLES)})",
    )  # fmt: skip
    for word, verb in (("publish", "publish to"), ("subscribe", "receive")):
        parser.add_argument(
            f"--may-{word}", action="append", metavar="FILTER",
            help=f"topics that clients of the node may {verb}, repeated for several (default #, or"
            " what an intermediate authority may grant)",
        )  # fmt: skip
    parser.add_argument(
        "--days", type=whole_number(1, DAYS_MAX, "days"), default=DAYS_DEFAULT, metavar="N",
        help=f"validity (default {DAYS_DEFAULT})",
    )  # fmt: skip


def claims_of(args: argparse.Namespace, default: Claims) -> Claims:
    """Return the claims that the options ask for, and those of `default` for other options."""
    if not args.name.isprintable():
        raise UsageError(f"--name {args.name!r}: a name has no control characters")
    return Claims(
        args.name,
        tuple(args.role or default.roles),
        tuple(args.may_publish or default.may_publish),
        tuple(args.may_subscribe or default.may_subscribe),
    )


def ca_directory(given: Path | None) -> Path:
    """Return the directory of the authority."""
    return given or default_state_directory().parent / "ca"


def state_directory(given: Path | None) -> Path:
    """Return the state directory of the agent, which need not have run yet."""
    named = os.environ.get("HANSA_STATE", "")
    found = given or (Path(named) if named else default_state_directory())
    try:
        found.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot use {found}: {error.strerror}") from error
    return found


def _now() -> datetime:
    return datetime.now(UTC)


def _init(args: argparse.Namespace) -> None:
    directory = ca_directory(args.ca)
    name = args.target or ProtocolSettings().federation
    made = CertificateAuthority.create(directory, name, _now())
    say(f"authority of federation {made.federation!r} in {directory}: keep a copy of it offline")


def _request(args: argparse.Namespace) -> None:
    file = state_directory(args.state) / KEY_FILE
    key = load_key(file) or create_key(file)
    _write(args.out, make_request(key))
    node = node_of(key)
    say(f"request of node {node:016x}")


def _sign(args: argparse.Namespace) -> None:
    authority = CertificateAuthority(ca_directory(args.ca))
    valid = timedelta(days=args.days)
    if bool(args.target) == bool(args.state):
        raise UsageError("sign needs a file with a request, or --state for an agent here")
    if args.target:
        try:
            request = Path(args.target).read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {args.target}: {error.strerror}") from error
        claims = claims_of(args, authority.ceiling)
        made, bundle = authority.sign_request(request, claims, _now(), valid)
    else:
        file = state_directory(args.state) / KEY_FILE
        key = (load_key(file) or create_key(file)).public_key()
        made, bundle = authority.sign(key, claims_of(args, authority.ceiling), _now(), valid)
    warn_of_end(authority)
    _hand_over(args, made, bundle)


def _intermediate(args: argparse.Namespace) -> None:
    """Make an intermediate authority, or sign one again."""
    authority = CertificateAuthority(ca_directory(args.ca))
    if not args.target or args.out is None:
        raise UsageError(
            "intermediate needs a name, and --out DIR: the directory of the new authority, or of"
            " the one to sign again"
        )
    args.name = args.target
    ceiling = claims_of(args, Claims())
    made = authority.issue_intermediate(args.out, ceiling, _now(), timedelta(days=args.days))
    say(
        f"intermediate authority {args.target} of federation {authority.federation!r} in"
        f" {args.out}, valid until {made.not_valid_after_utc:%Y-%m-%d}: use it with --ca"
    )


def warn_of_end(authority: CertificateAuthority) -> None:
    """Print that an intermediate ends soon."""
    if warning := authority.expiry_warning(_now()):
        say(f"warning: {warning}")


def _renew(args: argparse.Namespace) -> None:
    authority = CertificateAuthority(ca_directory(args.ca))
    if args.root and args.drop_old:
        say(f"{authority.drop_old_roots()} earlier roots are not trusted any more")
    elif args.root:
        authority.renew_root(_now())
        say("new root made: renew the certificate of every node, install them, then --drop-old")
    elif args.due:
        _renew_due(args, authority)
    elif args.target:
        _hand_over(args, *authority.renew(args.target, _now(), timedelta(days=args.days)))
    else:
        raise UsageError("renew needs the name or id of a node, --due, or --root")


def _renew_due(args: argparse.Namespace, authority: CertificateAuthority) -> None:
    """Write one file per node whose certificate ends soon: for a timer."""
    if args.out is None:
        raise UsageError("renew --due needs --out DIR, a directory for one file per node")
    try:
        args.out.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot use {args.out}: {error.strerror}") from error
    for each in authority.certificates_ending(_now()):
        node = f"{each.node:016x}"
        made, bundle = authority.renew(node, _now(), timedelta(days=args.days))
        _write(args.out / f"{node}.pem", bundle.pem)
        name = printable(each.claims.name)
        say(f"node {node} ({name}): renewed, valid until {made.not_after:%Y-%m-%d}")


def _serve(args: argparse.Namespace) -> None:
    """Renew certificates of members until a signal ends it."""
    directory = ca_directory(args.ca)
    issuer = Issuer(directory, args.listen, args.port)
    try:
        if args.address:
            address = parse_address(args.address, issuer.port)
            save_issuer(directory, str(address))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: issuer.stop())
        warn_of_end(CertificateAuthority(directory))
        say(f"renews certificates of federation {issuer.federation!r} on port {issuer.port}")
        issuer.serve(on_renewed=_report_renewed, on_refused=_report_refused)
    finally:
        issuer.close()
    counted = ", ".join(f"{count} {name}" for name, count in sorted(issuer.counters.items()))
    say(f"stopped: {counted or 'nobody asked'}")


def _report_renewed(remote: str, made: NodeCertificate) -> None:
    say(f"node {made.node:016x} at {remote}: renewed, valid until {made.not_after:%Y-%m-%d %H:%M}")


def _report_refused(remote: str, reason: str) -> None:
    say(f"refused {remote}: {printable(reason)}")


def _revoke(args: argparse.Namespace) -> None:
    authority = CertificateAuthority(ca_directory(args.ca))
    if not args.target:
        raise UsageError("revoke needs the name or id of a node")
    if args.target in map(name_of, authority.intermediates()):
        count = authority.revoke_intermediate(args.target, _now())
        say(
            f"revoked {count} certificates of the intermediate {args.target}: nodes that it has"
            " enrolled are no members any more"
        )
    else:
        found = authority.revoke(args.target, _now())
        say(f"revoked {len(found)} certificates of node {found[0].node:016x}")
    _write(args.out, authority.revoked_pem)


def _show(args: argparse.Namespace) -> None:
    authority = CertificateAuthority(ca_directory(args.ca))
    revoked, now = authority.revoked_serials, _now()
    what = "intermediate" if authority.is_intermediate else "root"
    until = f"{authority.signer.not_valid_after_utc:%Y-%m-%d}"
    rows: list[dict[str, str | tuple[str, ...]]] = []

    def add(node: str, serial: int, claims: Claims, until: datetime) -> None:
        state = "revoked" if serial in revoked else "expired" if until < now else "valid"
        rows.append(
            {
                "node": node,
                "name": claims.name,
                "roles": claims.roles,
                "may publish": claims.may_publish,
                "may subscribe": claims.may_subscribe,
                "until": f"{until:%Y-%m-%d}",
                "state": state,
            }
        )

    for each in authority.intermediates():
        ceiling = ceiling_of(each) or Claims()
        add("intermediate", each.serial_number, ceiling, each.not_valid_after_utc)
    for node in authority.issued():
        add(f"{node.node:016x}", node.serial, node.claims, node.not_after)
    if args.json:
        named = [{key.replace(" ", "_"): value for key, value in row.items()} for row in rows]
        about = {"federation": authority.federation, "kind": what, "until": until}
        print_json({**about, "certificates": named})
        return
    title = f"federation {authority.federation}, {what} valid until {until}"
    columns = ("node", "name", "roles", "may publish", "may subscribe", "until", "state")
    table = make_table(*columns)
    table.title, table.title_justify = escape(printable(title)), "left"
    for row in rows:
        texts = (each if isinstance(each, str) else ", ".join(each) for each in row.values())
        table.add_row(*(escape(printable(text)) for text in texts))
    console().print(table)


def _hand_over(args: argparse.Namespace, made: NodeCertificate, bundle: Bundle) -> None:
    """Install a certificate in a state directory of this machine, or print it."""
    until = f"{made.not_after:%Y-%m-%d}"
    if args.state:
        directory = state_directory(args.state)
        install(directory, bundle, _now())
        say(f"node {made.node:016x}: {directory / CERTIFICATE_FILE}, valid until {until}")
    else:
        say(f"certificate of node {made.node:016x}, valid until {until}")
        _write(args.out, bundle.pem)


def _write(out: Path | None, data: bytes) -> None:
    if out is None:
        sys.stdout.write(data.decode())
        return
    try:
        replace_file(out, data)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from error


ACTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    "init": _init,
    "intermediate": _intermediate,
    "request": _request,
    "sign": _sign,
    "renew": _renew,
    "serve": _serve,
    "revoke": _revoke,
    "show": _show,
}
