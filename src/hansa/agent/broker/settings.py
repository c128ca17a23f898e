"""Settings of the broker beside an agent, and of the ways to observe it."""

from dataclasses import dataclass, field

from hansa.agent.broker.access import check_access, tls_context
from hansa.agent.broker.connection import BrokerAddress
from hansa.agent.http_client import parse_server_url
from hansa.agent.links.settings import BROKER_PORT, PORT_MAX
from hansa.errors import InvalidTopic, UsageError
from hansa.observers.rest.description import CUSTOM, DESCRIPTIONS, ListRequest, check_request
from hansa.observers.topics import KINDS
from hansa.protocol.topics import check_filter, check_name

OBSERVERS = ("mosquitto", "rest", "topics", "proxy", "beacon", "static", "embedded")
PROXY_PORT = 1_884
OVERLAP_COPIES = ("each", "once")
SESSIONS_3_1_1 = ("auto", "lasting", "clean")
PROXY_PROTOCOL_VERSIONS = ("v1", "v2")
INTERVAL_MIN_S = 0.1
"""Least seconds between two polls of an HTTP API."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The broker beside this agent."""

    host: str = "127.0.0.1"
    port: int = BROKER_PORT
    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    """Whether to use TLS to the broker."""
    tls_ca: str = ""
    """File with the certificate authorities to trust; empty: those of the system."""
    observer: str = "mosquitto"
    """How to learn subscriptions: mosquitto, rest, topics, proxy, beacon or static; or embedded, a
    broker in the agent for evaluation, which listens on this host and port."""
    filters: tuple[str, ...] = ()
    """With observer static: the filters of clients here."""
    filters_when_unknown: tuple[str, ...] = ("#",)
    """Filters to announce while the agent does not know every subscription here, so that no
    client misses a message. Fewer filters save bandwidth; with an empty list, clients whose
    subscriptions are unknown get nothing."""
    log_file: str = ""
    """The broker's `log_dest file`, if the agent can read it: shows earlier subscriptions."""
    persistence_file: str = ""
    """With log_file: the broker's mosquitto.db, if the agent can read it: shows persistent sessions
    that the broker restored at its start."""
    config_file: str = ""
    """The broker's mosquitto.conf, if the agent can read it: `hansa doctor federation` warns of a
    short `max_queued_messages`."""
    pid_file: str = ""
    """The broker's `pid_file`, if the agent may send SIGUSR2 to make the broker print all
    filters."""
    output_file: str = ""
    """With pid_file: the file of the broker's standard output, written line by line."""
    client_id: str = ""
    """Prefix of the agent's client ids at the broker; `hansa-<node id>` if empty."""
    state_topics: str = ""
    """Prefix of retained topics with the state of the agent, its links and all nodes; none if
    empty. With a prefix that begins with $, such as $hansa/state, they stay at this broker; others
    cross like all topics where clients subscribe to them."""
    beacon_interval: float = 10.0
    """With observer beacon: seconds between two beacons of one topic."""
    overlap_copies: str = "each"
    """Copies that a broker without MQTT 5 sends of a publication that several of the agent's
    filters match: each, one for each of them, or once. `hansa doctor` finds out."""
    session_3_1_1: str = "auto"
    """The agent's session at a broker without MQTT 5. If lasting, the broker keeps publications of
    QoS 1 and 2 while the agent is disconnected; after a crash of the agent some may be duplicated,
    also at QoS 2, and a broker whose agent never returns keeps publications without end. If clean,
    publications are lost while the agent is disconnected. auto: lasting if overlap_copies is each.
    aedes, which sends one copy, delays and repeats publications in lasting sessions if several
    filters match."""

    @property
    def keeps_3_1_1_session(self) -> bool:
        """Whether the agent's session at a broker without MQTT 5 outlives the connection."""
        is_auto = self.session_3_1_1 == "auto"
        return self.overlap_copies == "each" if is_auto else self.session_3_1_1 == "lasting"

    def address(self) -> BrokerAddress:
        """Return address, credentials and TLS; raise UsageError if tls_ca is unusable."""
        return BrokerAddress(
            self.host,
            self.port,
            self.username or None,
            self.password or None,
            tls_context("broker", self),
            "username and password in [broker]",
        )


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """With [broker] observer = "proxy": the address that clients connect to instead of the
    broker's."""

    host: str = "127.0.0.1"
    """Address to listen on: that of an interface, 0.0.0.0 or :: for all."""
    port: int = PROXY_PORT
    """0 takes a free port and logs it."""
    tls_certificate: str = ""
    """File with the certificate for clients; without one they use plain MQTT. If the file changes,
    new connections use the new certificate."""
    tls_key: str = ""
    """File with its private key, if it is not in the same file."""
    passthrough_names: tuple[str, ...] = ()
    """With tls_certificate: server names (SNI) whose TLS ends at the broker, for clients with
    certificates that the broker checks. The proxy cannot read what these clients subscribe to."""
    passthrough_port: int = 0
    """Port of the broker that expects TLS, for passthrough_names."""
    passthrough_filters: tuple[str, ...] = ()
    """Everything that clients with passthrough_names subscribe to. Without it, subscriptions are
    unknown and the agent announces filters_when_unknown."""
    websocket_port: int = 0
    """With broker_websocket_port: the port for clients with WebSocket; 0 takes a free one."""
    broker_websocket_port: int = 0
    """Port of the broker that expects WebSocket; 0: no WebSocket."""
    proxy_protocol: str = ""
    """v1 or v2: tell the broker the address of each client by the PROXY protocol. Needs
    broker_port."""
    broker_port: int = 0
    """Port of the broker for clients of the proxy, if it is not that of [broker], which the agent
    itself uses: with proxy_protocol a listener that expects it."""
    no_earlier_sessions: bool = False
    """Whether no client has left a persistent session at the broker before the proxy first ran.
    Until this is set, subscriptions may be unknown and the agent announces filters_when_unknown."""
    unfinished_max: int = 512
    """Connections that have not completed TLS, and as many that have not sent a CONNECT. A further
    one ends the oldest of the host that has most. More costs memory during an attack, fewer may
    cut off clients on slow paths when very many connect at once."""
    handshake_timeout: float = 10.0
    """Seconds for the TLS handshake of a client. Small devices and slow radio need several."""


@dataclass(frozen=True, slots=True)
class RestSettings:
    """With [broker] observer = "rest": the HTTP API of the broker, which lists subscriptions."""

    kind: str = ""
    """nats, rabbitmq, rmqtt, emqx, nanomq; or custom, as [rest.custom] describes."""
    url: str = ""
    """Address of the API, such as http://127.0.0.1:8222, without user and password."""
    username: str = ""
    """User for HTTP Basic; for EMQX an API key."""
    password: str = field(default="", repr=False)
    """Its password; for EMQX the secret key."""
    token: str = field(default="", repr=False)
    """Bearer token, instead of a user."""
    tls_ca: str = ""
    """With https: file with the certificate authorities to trust; empty: those of the system."""
    interval: float = 1.0
    """Seconds between two polls. A client that subscribes gets publications of other brokers after
    at most two of them; fewer polls cost the broker less."""
    timeout: float = 5.0
    """Seconds for each answer."""
    custom: ListRequest = field(default_factory=ListRequest)

    @property
    def tls(self) -> bool:
        """Whether to use TLS."""
        return self.url.lower().startswith("https:")

    @property
    def requests(self) -> tuple[ListRequest, ...]:
        return (self.custom,) if self.kind == CUSTOM else DESCRIPTIONS[self.kind]


@dataclass(frozen=True, slots=True)
class TopicsSettings:
    """With [broker] observer = "topics": the broker publishes subscriptions on $SYS topics."""

    kind: str = ""
    """aedes or rmqtt."""
    agent_first: bool = False
    """Whether the agent is always connected to the broker before any client is. Otherwise
    subscriptions may be unknown and the agent announces filters_when_unknown."""


def _check_state_topics(broker: BrokerSettings) -> None:
    if not broker.state_topics:
        return
    try:
        check_name(broker.state_topics)
    except InvalidTopic as error:
        raise UsageError(f"[broker] state_topics: {error}") from error
    if broker.state_topics.endswith("/"):
        raise UsageError("[broker] state_topics is a prefix: leave out the / at its end")
    if broker.observer == "embedded":
        raise UsageError("[broker] state_topics need a broker of their own: embedded is none")


def check_broker(
    broker: BrokerSettings, proxy: ProxySettings, rest: RestSettings, topics: TopicsSettings
) -> None:
    """Raise UsageError for settings that cannot work, with the setting and what to change."""
    if broker.observer not in OBSERVERS:
        choice = ", ".join(OBSERVERS)
        raise UsageError(f"[broker] observer must be one of {choice}, not {broker.observer!r}")
    if not broker.host:
        raise UsageError("[broker] host is missing")
    if broker.overlap_copies not in OVERLAP_COPIES:
        raise UsageError(
            f"[broker] overlap_copies must be each or once, not {broker.overlap_copies!r}"
        )
    if broker.session_3_1_1 not in SESSIONS_3_1_1:
        raise UsageError(
            f"[broker] session_3_1_1 must be auto, lasting or clean, not {broker.session_3_1_1!r}"
        )
    _check_state_topics(broker)
    _check_filters(broker)
    _check_filters_when_unknown(broker.filters_when_unknown)
    _check_proxy(proxy, broker)
    if broker.observer == "rest":
        check_rest(rest)
    if broker.observer == "topics":
        _check_topics(topics)
    check_access("broker", broker)
    if broker.persistence_file and not broker.log_file:
        raise UsageError("[broker] persistence_file needs log_file")
    if bool(broker.pid_file) != bool(broker.output_file):
        raise UsageError("[broker] pid_file and output_file need each other")
    if broker.beacon_interval <= 0:
        raise UsageError(
            f"[broker] beacon_interval must be above 0 seconds, not {broker.beacon_interval}"
        )


def _check_filters(broker: BrokerSettings) -> None:
    if broker.filters and broker.observer != "static":
        raise UsageError('[broker] filters is for observer = "static"')
    for topic_filter in broker.filters:
        try:
            check_filter(topic_filter)
        except InvalidTopic as error:
            raise UsageError(f"[broker] filters: {error}") from error


def _check_topics(topics: TopicsSettings) -> None:
    if topics.kind not in KINDS:
        raise UsageError(f"[topics] kind must be one of {', '.join(KINDS)}, not {topics.kind!r}")


def _check_filters_when_unknown(filters: tuple[str, ...]) -> None:
    for topic_filter in filters:
        try:
            check_filter(topic_filter)
        except InvalidTopic as error:
            raise UsageError(f"[broker] filters_when_unknown: {error}") from error
        if topic_filter.startswith("$"):
            raise UsageError(
                f"[broker] filters_when_unknown: {topic_filter!r}: topics with $ stay with their"
                " broker, and a shared subscription would take messages from its group"
            )


def _check_proxy(proxy: ProxySettings, broker: BrokerSettings) -> None:
    is_same = (proxy.host, proxy.port) == (broker.host, broker.port)
    if is_same and broker.observer == "proxy":
        raise UsageError("[proxy] and [broker] have the same host and port; choose another one")
    if proxy.proxy_protocol not in ("", *PROXY_PROTOCOL_VERSIONS):
        raise UsageError(f"[proxy] proxy_protocol must be v1 or v2, not {proxy.proxy_protocol!r}")
    if not 0 <= proxy.broker_port <= PORT_MAX:
        raise UsageError(f"[proxy] broker_port must be from 0 to {PORT_MAX}")
    if proxy.proxy_protocol and not proxy.broker_port:
        raise UsageError(
            "[proxy] proxy_protocol needs broker_port, a listener of the broker that expects it:"
            " the agent itself does not send it"
        )
    if proxy.proxy_protocol and broker.tls:
        raise UsageError("[proxy] proxy_protocol does not work with [broker] tls")
    if proxy.tls_key and not proxy.tls_certificate:
        raise UsageError("[proxy] tls_key needs tls_certificate")
    for name in ("websocket_port", "broker_websocket_port", "passthrough_port"):
        if not 0 <= getattr(proxy, name) <= PORT_MAX:
            raise UsageError(f"[proxy] {name} must be from 0 to {PORT_MAX}")
    if proxy.websocket_port and not proxy.broker_websocket_port:
        raise UsageError("[proxy] websocket_port needs broker_websocket_port")
    _check_unfinished(proxy)
    _check_passthrough(proxy)


def _check_unfinished(proxy: ProxySettings) -> None:
    if proxy.unfinished_max < 1:
        raise UsageError("[proxy] unfinished_max must be at least 1")
    if proxy.handshake_timeout <= 0:
        raise UsageError("[proxy] handshake_timeout must be more than 0")


def _check_passthrough(proxy: ProxySettings) -> None:
    if proxy.passthrough_names and not (proxy.tls_certificate and proxy.passthrough_port):
        raise UsageError("[proxy] passthrough_names needs tls_certificate and passthrough_port")
    if proxy.passthrough_filters and not proxy.passthrough_names:
        raise UsageError("[proxy] passthrough_filters needs passthrough_names")
    for name in proxy.passthrough_names:
        if name != name.lower() or not name:
            raise UsageError(f"[proxy] passthrough_names: {name!r} must be in lower case")
    for topic_filter in proxy.passthrough_filters:
        try:
            check_filter(topic_filter)
        except InvalidTopic as error:
            raise UsageError(f"[proxy] passthrough_filters: {error}") from error


def check_rest(rest: RestSettings) -> None:
    """Raise UsageError for settings that cannot work. The URL is not repeated: it may hold a
    password."""
    kinds = (*DESCRIPTIONS, CUSTOM)
    if rest.kind not in kinds:
        raise UsageError(f"[rest] kind must be one of {', '.join(kinds)}, not {rest.kind!r}")
    parse_server_url("[rest] url", rest.url)
    _check_login(rest)
    if rest.interval < INTERVAL_MIN_S:
        raise UsageError(f"[rest] interval must be at least {INTERVAL_MIN_S}, not {rest.interval}")
    if rest.timeout <= 0:
        raise UsageError(f"[rest] timeout must be above 0 seconds, not {rest.timeout}")
    if rest.kind == CUSTOM:
        check_request(rest.custom, "[rest.custom]")


def _check_login(rest: RestSettings) -> None:
    if rest.password and not rest.username:
        raise UsageError("[rest] password needs a username")
    if rest.token and rest.username:
        raise UsageError("[rest] token and username exclude each other")
    if any(mark in rest.username + rest.password + rest.token for mark in "\r\n"):
        raise UsageError("[rest] username, password and token must be one line each")
    if rest.tls_ca and not rest.tls:
        raise UsageError("[rest] tls_ca is for a url with https")
