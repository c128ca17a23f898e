"""`hansa init`: set up the agent of this host, as the first node of a federation or by a token."""

import argparse
import getpass
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hansa.agent.broker.settings import BrokerSettings
from hansa.agent.settings import ADMIN_PORT, default_config_file
from hansa.cli.arguments import Parser, broker_address, path, read_secret, whole_number
from hansa.cli.broker_report import show_report
from hansa.cli.ca import ca_directory, state_directory
from hansa.console.terminal import console, say
from hansa.errors import UsageError
from hansa.identity.enrolment import Token, parse_token
from hansa.launcher import command_line
from hansa.setup.mosquitto import DEFAULT_CONF
from hansa.setup.node import (
    PASSWORD_VARIABLE,
    check_new,
    enrol,
    member_of,
    save_password,
    write_settings,
)
from hansa.setup.site import SiteOptions, SiteSetup, host_name

EXAMPLES = """\
  hansa init --name north --address north.example --prepare-broker
                                     the first site: makes the federation's authority
  hansa invite --name south          there: prints a token for the second site, and waits for it
  hansa init --join TOKEN --name south --prepare-broker
                                     the second site: joins and links to the first one
  hansa init --name north --username hansa
                                     a broker that is prepared; password in HANSA_BROKER_PASSWORD

At a terminal, init asks for what the options do not say. It never overwrites settings."""


def run(given: Sequence[str]) -> int:
    """Set up the agent; exit code 1 if it could not work beside the broker."""
    args = _parse(given)
    config = args.config or default_config_file()
    check_new(config, args.federation)
    token = parse_token(read_secret(args.join)) if args.join else None
    state = state_directory(args.state)
    member = member_of(state)
    if token is not None and member is not None:
        raise UsageError(
            f"{state} has a certificate of federation {member.federation!r}: leave out --join to"
            " keep it, or move the directory away to join as a new node"
        )
    if sys.stdin.isatty():
        _ask(args, is_first=token is None and member is None)
    site = SiteSetup(_options(args, config, token), say)
    if args.prepare_broker:
        site.prepare_broker()
    else:
        site.find_files()
    if not args.no_check and not _check(site):
        return 1
    plan = site.plan(state)
    credentials = member or enrol(plan, token, ca_directory(args.ca), args.federation)
    write_settings(plan, config)
    save_password(config, site.broker.password)
    say(f"node {credentials.certificate.node:016x} of federation {credentials.federation!r}")
    say(f"settings are in {config}")
    if site.has_service() and not args.no_start:
        site.start_service()
    else:
        say(f"start it: {site.start_command()}")
    given_config = () if args.config is None else ("--config", str(config))
    if plan.neighbours:
        say(f"next: {command_line('status', *given_config)}")
    else:
        given_ca = () if args.ca is None else ("--ca", str(args.ca))
        invite = command_line("invite", "--name", "NAME", *given_config, *given_ca)
        say(f"next: {invite} prints a token; on the other host: hansa init --join TOKEN")
    return 0


def _parse(given: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        "hansa init",
        "Set up the agent of this host: look at its broker as hansa doctor does, make or get the\n"
        "node's certificate, write the settings, and start the service if systemd runs. Without\n"
        "--join it makes a new federation with its certificate authority. Exit code 1 if an agent\n"
        "cannot work beside the broker; nothing but --prepare-broker has then changed files.",
        EXAMPLES,
    )
    parser.add_argument("--name", default="", help="name of the node (default: that of the host)")
    parser.add_argument(
        "--join", default="", metavar="TOKEN",
        help="token of hansa invite; - reads it from standard input, unseen by other users",
    )  # fmt: skip
    parser.add_argument(
        "--federation", default="", metavar="NAME", help="name of a new federation (default hansa)"
    )
    parser.add_argument(
        "--address", default="", metavar="HOST[:PORT]",
        help="where other nodes reach this one; it then accepts links on all interfaces. Default of"
        " the first node: the name of the host. Without it, a node that joins only opens links",
    )  # fmt: skip
    parser.add_argument(
        "--neighbour", action="append", default=[], metavar="HOST[:PORT]",
        help="agent to link to, repeated for several (default: the one that the token names)",
    )  # fmt: skip
    broker = parser.add_argument_group("broker")
    broker.add_argument(
        "--broker", type=broker_address, metavar="HOST:PORT",
        help="address of the broker (default localhost:1883)",
    )  # fmt: skip
    broker.add_argument(
        "--username", default="", metavar="NAME",
        help=f"user of the agent at the broker; password in {PASSWORD_VARIABLE}",
    )  # fmt: skip
    broker.add_argument("--tls", action="store_true", help="use TLS to the broker")
    broker.add_argument(
        "--tls-ca", default="", metavar="FILE", help="CA certificates to trust; implies --tls"
    )
    broker.add_argument(
        "--prepare-broker", action="store_true",
        help="change the Mosquitto of this host: add a user for the agent with a random password,"
        " its rights, and log settings; let the agent read the log; restart the broker",
    )  # fmt: skip
    broker.add_argument(
        "--topic", action="append", default=[], metavar="FILTER",
        help="with --prepare-broker and an access list: topics that the agent may read and write,"
        " repeated for several (default #)",
    )  # fmt: skip
    broker.add_argument(
        "--mosquitto-conf", type=path, default=DEFAULT_CONF, metavar="FILE",
        help=f"configuration of the Mosquitto (default {DEFAULT_CONF})",
    )  # fmt: skip
    broker.add_argument(
        "--no-check", action="store_true", help="write the settings without looking at the broker"
    )
    places = parser.add_argument_group("places")
    places.add_argument("--config", type=path, metavar="FILE", help="settings to write")
    places.add_argument("--state", type=path, metavar="DIR", help="state directory of the agent")
    places.add_argument("--ca", type=path, metavar="DIR", help="directory of the authority")
    places.add_argument(
        "--admin-port", type=whole_number(1, 65_535), default=ADMIN_PORT, metavar="N",
        help="port of status and metrics on loopback (default 8080)",
    )  # fmt: skip
    places.add_argument("--no-start", action="store_true", help="do not start the service")
    args = parser.parse_args(given)
    if args.join and args.federation:
        parser.error("--federation makes a new federation, --join joins one: give one of both")
    if args.topic and not args.prepare_broker:
        parser.error("--topic needs --prepare-broker")
    return args


# ---------------------------------------------------------------- questions


def _ask(args: argparse.Namespace, *, is_first: bool) -> None:
    """Ask at the terminal for what the options do not say."""
    args.name = args.name or _answer("name of this node", host_name())
    if args.broker is None:
        args.broker = _broker_address(_answer("address of the broker", "localhost:1883"))
    if is_first and not args.address:
        args.address = _answer("where other nodes reach this host", host_name())
    if args.mosquitto_conf.exists() and not args.prepare_broker and not args.username:
        question = f"add user, rights and log settings to {args.mosquitto_conf}, and restart it?"
        args.prepare_broker = _answer(question, "no").lower() in ("y", "yes")
    if not args.prepare_broker and not args.username:
        args.username = _answer("user of the agent at the broker, empty for none", "")
    if args.username and not args.prepare_broker and not os.environ.get(PASSWORD_VARIABLE):
        os.environ[PASSWORD_VARIABLE] = getpass.getpass(f"password of {args.username}: ")


def _broker_address(text: str) -> tuple[str, int]:
    try:
        return broker_address(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(str(error)) from error


def _answer(question: str, default: str) -> str:
    shown = f" [{default}]" if default else ""
    try:
        return input(f"{question}{shown} ").strip() or default
    except EOFError as error:
        raise UsageError("stopped: nothing was written") from error


# ---------------------------------------------------------------- the site


def _options(args: argparse.Namespace, config: Path, token: Token | None) -> SiteOptions:
    host, port = args.broker or ("localhost", 1883)
    neighbours = args.neighbour or ([token.link] if token is not None and token.link else [])
    if token is not None and not neighbours:
        say("the token names no agent to link to: give --neighbour, or let others link here")
    is_first = token is None and not neighbours
    return SiteOptions(
        name=args.name or host_name(),
        config=config,
        broker=BrokerSettings(
            host=host,
            port=port,
            username=args.username,
            tls=args.tls or bool(args.tls_ca),
            tls_ca=args.tls_ca,
        ),
        mosquitto_conf=args.mosquitto_conf,
        topics=tuple(args.topic),
        address=args.address or (host_name() if is_first else ""),
        neighbours=tuple(neighbours),
        admin_port=args.admin_port,
    )


def _check(site: SiteSetup) -> bool:
    """Show what the doctor says; return whether an agent can work here."""
    with Console(stderr=True).status("looking at the broker") as status:
        report = site.check_broker(status.update)
    show_report(console(), report)
    if not report.is_usable:
        say("no settings were written: change the broker as shown, and repeat this command")
    return report.is_usable
