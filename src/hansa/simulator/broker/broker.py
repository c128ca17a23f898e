"""The model broker: connections, sessions and the packets of clients."""

from enum import Enum

from hansa.mqtt import packets
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.properties import Properties, Property, encode_properties, find_property
from hansa.mqtt.types import Reason, Version
from hansa.simulator.broker.effects import CloseConnection, Effect, SendToClient
from hansa.simulator.broker.message import Message, make_message
from hansa.simulator.broker.outgoing import Added, ProtocolError
from hansa.simulator.broker.retained import RetainedMessages
from hansa.simulator.broker.saved_state import SavedState, restore_state, save_state
from hansa.simulator.broker.session import Session
from hansa.simulator.broker.settings import MosquittoSettings
from hansa.simulator.broker.subscriptions import Subscriptions, split_share

NEVER = float("inf")
KEEP_ALIVE_MAX = 65_535
TOPIC_ALIAS_MAX = 10
V2_1_PACKET_BYTES_MAX = 2_000_000
RETURN_CODE_IDENTIFIER_REJECTED = 2


class Restart(Enum):
    """How the broker ends, and so what it still knows when it starts again."""

    STOPPED = "stopped"
    """SIGTERM: it saves its state."""
    KILLED = "killed"
    """kill -9: the last saved state is restored."""
    ERASED = "erased"
    """The saved state is lost too."""


class _Refused(Exception):
    """The broker closes the connection of a client because of its packet."""

    def __init__(self, text: str, reason: Reason | None = None) -> None:
        """`reason` is that of a DISCONNECT, if the broker sends one."""
        super().__init__(text)
        self.reason = reason


class MosquittoModel:
    __slots__ = (
        "_assigned_count",
        "_change_count",
        "_connections",
        "_effects",
        "_first_expiry",
        "_retained",
        "_saved",
        "_saved_at",
        "_sessions",
        "_settings",
        "_subscriptions",
        "dropped_count",
    )

    def __init__(self, settings: MosquittoSettings | None = None) -> None:
        """Start without sessions, retained messages and saved state."""
        self._settings = settings or MosquittoSettings()
        self._effects: list[Effect] = []
        self._connections: dict[int, Session] = {}
        self._sessions: dict[str, Session] = {}
        self._subscriptions = Subscriptions(self._settings.is_v2_1)
        self._retained = RetainedMessages(self._settings.is_v2_1)
        self._first_expiry = NEVER  # no session expires before this second
        self._saved = SavedState()
        self._saved_at = 0.0
        self._change_count = 0  # since the last save
        self._assigned_count = 0
        self.dropped_count = 0
        """Publications dropped because a client's queue was full."""

    # ------------------------------------------------------------ inputs

    def receive(self, connection_id: int, packet: packets.AnyPacket, now: float) -> list[Effect]:
        """Handle a packet of a client. A new connection begins with CONNECT; other packets of
        unknown or closed connections are ignored."""
        second = int(now)
        self._expire_sessions(second)
        session = self._connections.get(connection_id)
        if session is None:
            if isinstance(packet, packets.ConnectPacket):
                self._connect(connection_id, packet, second)
        else:
            try:
                self._handle(session, packet, second)
            except _Refused as refused:
                if refused.reason is not None and session.is_v5:
                    self._send(session, packets.DisconnectPacket(refused.reason))
                self._close(session, str(refused), second)
            except ProtocolError as error:
                if self._settings.is_v2_1 and session.is_v5:
                    self._send(session, packets.DisconnectPacket(Reason.PROTOCOL_ERROR))
                self._close(session, str(error), second)
        return self._finish(now)

    def disconnected(self, connection_id: int, now: float) -> list[Effect]:
        """Handle the loss of a connection."""
        self._expire_sessions(int(now))
        session = self._connections.get(connection_id)
        if session is not None:
            self._end_connection(session, int(now))
        return self._finish(now)

    def advance(self, now: float) -> None:
        """Expire sessions, and save the state if it is time. All inputs do that too; this is for
        autosaves by time while there are no inputs."""
        self._expire_sessions(int(now))
        self._finish(now)

    def save(self, now: float) -> None:
        """Save the state, as an autosave does."""
        self._change_count = 0
        self._saved_at = now
        if self._settings.is_persistent:
            self._saved = save_state(
                self._sessions.values(), self._subscriptions, self._retained, int(now)
            )

    def restart(self, kind: Restart, now: float) -> list[Effect]:
        """End the broker and start it again; all connections are closed."""
        if kind is Restart.STOPPED:
            for session in list(self._sessions.values()):
                self._publish_will(session, int(now))
            self.save(now)
        elif kind is Restart.ERASED:
            self._saved = SavedState()
        for connection_id in self._connections:
            self._effects.append(CloseConnection(connection_id, f"broker {kind.value}"))
        self._connections = {}
        self._subscriptions = Subscriptions(self._settings.is_v2_1)
        self._retained = RetainedMessages(self._settings.is_v2_1)
        self._sessions = restore_state(
            self._saved,
            self._settings,
            self._subscriptions,
            self._retained,
        )
        self._first_expiry = -NEVER
        self._change_count = len(self._saved.retained)  # Mosquitto counts them as it reads them
        self._saved_at = now
        return self._finish(now)

    # ------------------------------------------------------------ before and after every input

    def _expire_sessions(self, second: int) -> None:
        if second <= self._first_expiry:
            return
        for session in list(self._sessions.values()):
            if session.expires_at is not None and session.expires_at < second:
                self._forget(session)
        self._first_expiry = min(map(_expiry, self._sessions.values()), default=NEVER)

    def _finish(self, now: float) -> list[Effect]:
        interval = self._settings.autosave_interval
        if interval:
            if self._settings.autosave_on_changes:
                is_due = self._change_count >= interval
            else:
                is_due = now - self._saved_at > interval
            if is_due:
                self.save(now)
        effects, self._effects = self._effects, []
        return effects

    # ------------------------------------------------------------ connections

    def _connect(self, connection_id: int, packet: packets.ConnectPacket, second: int) -> None:
        client_id = packet.client_id
        if not client_id:
            if packet.version is Version.V311 and not packet.clean_start:
                refusal = packets.ConnAckPacket(reason=RETURN_CODE_IDENTIFIER_REJECTED)
                self._effects.append(SendToClient(connection_id, refusal))
                self._effects.append(CloseConnection(connection_id, "no client identifier"))
                return
            self._assigned_count += 1
            client_id = f"assigned-{self._assigned_count}"
        session = Session(client_id, self._settings)
        found = self._sessions.get(client_id)
        is_present = False
        if found is not None:
            is_present = not packet.clean_start and found.expiry_interval > 0
            self._replace(found, packet.clean_start, second)
            if is_present:
                session = found
                del self._sessions[client_id]  # it is the last one now
            else:
                self._forget(found)
        session.begin_connection(connection_id, packet)
        self._sessions[client_id] = session
        self._connections[connection_id] = session
        if not packet.clean_start:
            self._change_count += 1
        self._send(session, self._make_connack(packet, client_id, is_present))
        for resent in session.outgoing.resend(second):
            if isinstance(resent, PublishPacket):
                self._send_publish(session, resent)
            else:
                self._send(session, resent)

    def _replace(self, found: Session, clean_start: bool, second: int) -> None:
        """Close the earlier connection of a client id, in 2.0 without DISCONNECT. Its will is
        published if the session ends."""
        if clean_start:
            self._subscriptions.remove_all(found)
        if clean_start or not found.expiry_interval:
            self._publish_will(found, second)
        if found.connection_id is not None:
            if self._settings.is_v2_1 and found.is_v5:
                self._send(found, packets.DisconnectPacket(Reason.SESSION_TAKEN_OVER))
            del self._connections[found.connection_id]
            self._effects.append(CloseConnection(found.connection_id, "session taken over"))
            found.connection_id = None

    def _make_connack(
        self, packet: packets.ConnectPacket, client_id: str, is_present: bool
    ) -> packets.ConnAckPacket:
        if packet.version is Version.V311:
            return packets.ConnAckPacket(is_present)
        properties: Properties = ((Property.TOPIC_ALIAS_MAXIMUM, TOPIC_ALIAS_MAX),)
        if not packet.keep_alive and not self._settings.is_v2_1:
            properties += ((Property.SERVER_KEEP_ALIVE, KEEP_ALIVE_MAX),)
        if not packet.client_id:
            properties += ((Property.ASSIGNED_CLIENT_IDENTIFIER, client_id),)
        if self._settings.is_v2_1:
            properties += ((Property.MAXIMUM_PACKET_SIZE, V2_1_PACKET_BYTES_MAX),)
        if self._settings.max_inflight_messages:
            properties += ((Property.RECEIVE_MAXIMUM, self._settings.max_inflight_messages),)
        return packets.ConnAckPacket(is_present, properties=properties)

    def _close(self, session: Session, reason: str, second: int) -> None:
        assert session.connection_id is not None
        self._effects.append(CloseConnection(session.connection_id, reason))
        self._end_connection(session, second)

    def _end_connection(self, session: Session, second: int) -> None:
        assert session.connection_id is not None
        del self._connections[session.connection_id]
        session.connection_id = None
        self._publish_will(session, second)
        session.is_active = False
        if not session.expiry_interval:
            self._forget(session)
        else:
            session.expires_at = session.expiry_from(second)
            self._first_expiry = min(self._first_expiry, _expiry(session))

    def _forget(self, session: Session) -> None:
        self._subscriptions.remove_all(session)
        del self._sessions[session.client_id]

    def _publish_will(self, session: Session, second: int) -> None:
        will, session.will = session.will, None
        if will is not None:
            packet = PublishPacket(
                will.topic,
                will.payload,
                will.qos,
                will.retain,
                properties=encode_properties(will.properties),
            )
            self._publish(session.client_id, make_message(packet, second), second)

    def _send(self, session: Session, packet: packets.AnyPacket) -> None:
        if session.connection_id is not None:
            self._effects.append(SendToClient(session.connection_id, packet))

    # ------------------------------------------------------------ packets of clients

    def _handle(self, session: Session, packet: packets.AnyPacket, second: int) -> None:
        match packet:
            case PublishPacket():
                self._handle_publish(session, packet, second)
            case packets.PubAckPacket() | packets.PubRecPacket() | packets.PubCompPacket():
                self._handle_acknowledgement(session, packet, second)
            case packets.PubRelPacket():
                self._handle_pubrel(session, packet.packet_id, second)
            case packets.SubscribePacket():
                self._handle_subscribe(session, packet, second)
            case packets.UnsubscribePacket():
                self._handle_unsubscribe(session, packet)
            case packets.PingReqPacket():
                self._send(session, packets.PingRespPacket())
            case packets.DisconnectPacket():
                self._handle_disconnect(session, packet, second)
            case _:
                raise _Refused(f"unexpected {packets.packet_name(type(packet))}")

    def _handle_disconnect(
        self, session: Session, packet: packets.DisconnectPacket, second: int
    ) -> None:
        interval = find_property(packet.properties, Property.SESSION_EXPIRY_INTERVAL, None)
        if interval is not None:
            assert isinstance(interval, int)
            if interval and not session.expiry_interval:
                raise _Refused("session expiry interval after none", Reason.PROTOCOL_ERROR)
            session.expiry_interval = interval
        if packet.reason != Reason.DISCONNECT_WITH_WILL:
            session.will = None
        session.is_active = False
        self._close(session, "client disconnected", second)

    def _handle_subscribe(
        self, session: Session, packet: packets.SubscribePacket, second: int
    ) -> None:
        identifier = find_property(packet.properties, Property.SUBSCRIPTION_IDENTIFIER, 0)
        assert isinstance(identifier, int)
        for subscription in packet.subscriptions:
            is_new = self._subscriptions.add(session, subscription, identifier)
            handling = subscription.retain_handling
            group, topic_filter = split_share(subscription.topic_filter)
            if group is not None and self._settings.is_v2_1:
                continue  # 2.0 sends retained messages, which the standard excludes
            if handling == 0 or (handling == 1 and is_new):
                for message in self._retained.match(topic_filter):
                    if not message.expires_at or second < message.expires_at:
                        qos = min(message.qos, subscription.qos)
                        self._add_outgoing(session, message, qos, True, identifier)
        self._change_count += 1
        reasons = bytes(subscription.qos for subscription in packet.subscriptions)
        self._send(session, packets.SubAckPacket(packet.packet_id, reasons))
        session.outgoing.fill()
        self._send_pending(session, second)

    def _handle_unsubscribe(self, session: Session, packet: packets.UnsubscribePacket) -> None:
        reasons = self._subscriptions.remove(session, packet.filters)
        self._change_count += 1
        if not session.is_v5:
            reasons = b""
        self._send(session, packets.UnsubAckPacket(packet.packet_id, reasons))

    def _handle_acknowledgement(
        self,
        session: Session,
        packet: packets.PubAckPacket | packets.PubRecPacket | packets.PubCompPacket,
        second: int,
    ) -> None:
        window = session.outgoing
        match packet:
            case packets.PubAckPacket():
                window.handle_puback(packet.packet_id)
            case packets.PubCompPacket():
                window.handle_pubcomp(packet.packet_id)
            case packets.PubRecPacket():
                release = window.handle_pubrec(packet)
                if release is not None:
                    self._send(session, release)
                    return
        self._change_count += 1
        self._send_pending(session, second)

    # ------------------------------------------------------------ publications of clients

    def _handle_publish(self, session: Session, packet: PublishPacket, second: int) -> None:
        window = session.incoming
        known = window.find(packet) if packet.qos else None
        if packet.qos and known is None and not window.has_quota:
            self._refuse_publish(session, packet)
            return
        message = make_message(packet, second)
        match packet.qos:
            case 0:
                self._publish(session.client_id, message, second)
            case 1:
                # Mosquitto takes a quota here, and returns it with the PUBACK.
                is_matched = self._publish(session.client_id, message, second)
                reason = 0 if is_matched else Reason.NO_MATCHING_SUBSCRIBERS
                self._answer(session, packets.PubAckPacket, packet.packet_id, reason)
            case _:
                if known is None:
                    window.add(packet.packet_id, message)
                else:
                    known.repetitions += 1
                    if known.repetitions > 1:
                        raise _Refused("PUBLISH repeated twice", Reason.PROTOCOL_ERROR)
                self._answer(session, packets.PubRecPacket, packet.packet_id)
        unlimited = window if self._settings.is_v2_1 else session.outgoing
        room = window.quota if unlimited.in_flight_max else len(window.queue)
        for packet_id in window.fill(room):
            self._answer(session, packets.PubRecPacket, packet_id)

    def _refuse_publish(self, session: Session, packet: PublishPacket) -> None:
        """Refuse a publication above the broker's Receive Maximum.

        The refusal returns a quota that was not taken, so the next publication is accepted. At
        3.1.1 the client is not told, and the publication is lost.
        """
        if packet.qos == 1:
            session.incoming.return_quota()
            self._answer(session, packets.PubAckPacket, packet.packet_id, Reason.QUOTA_EXCEEDED)
        else:
            if session.is_v5:
                session.incoming.return_quota()
            self._answer(session, packets.PubRecPacket, packet.packet_id, Reason.QUOTA_EXCEEDED)
        if not self._settings.max_queued_messages and not self._settings.is_v2_1:
            raise _Refused("quota exceeded")

    def _handle_pubrel(self, session: Session, packet_id: int, second: int) -> None:
        window = session.incoming
        in_flight = len(window.in_flight)
        message = window.release(packet_id)
        if message is not None:
            self._publish(session.client_id, message, second)
        for queued_id in window.fill_after_release(in_flight, self._settings.is_v2_1):
            self._answer(session, packets.PubRecPacket, queued_id)
        window.return_quota()
        self._answer(session, packets.PubCompPacket, packet_id)

    def _answer(
        self,
        session: Session,
        answer: type[packets.PubAckPacket | packets.PubRecPacket | packets.PubCompPacket],
        packet_id: int,
        reason: int = 0,
    ) -> None:
        self._send(session, answer(packet_id, reason if session.is_v5 else 0))

    # ------------------------------------------------------------ publications to clients

    def _publish(self, source_id: str, message: Message, second: int) -> bool:
        """Deliver a message to all matching subscriptions, one copy each; return whether there is
        any, even if its client does not get the message."""
        is_matched = False
        served: set[str] = set()
        for subscriber in self._subscriptions.match(message.topic):
            is_matched = True
            session = subscriber.session
            if subscriber.no_local and session.client_id == source_id:
                continue
            qos = min(message.qos, subscriber.qos)
            retain = message.retain and subscriber.retain_as_published
            if session.gets_one_copy and session.client_id in served and not retain:
                session.outgoing.next_packet_id(qos)  # no second copy, but Mosquitto takes an id
                continue
            added = self._add_outgoing(session, message, qos, retain, subscriber.identifier)
            if added is Added.DROPPED or added is Added.SKIPPED:
                continue
            if not retain:
                served.add(session.client_id)
            if session.connection_id is not None:
                self._send_pending(session, second)
            if session.is_active:
                session.outgoing.fill()
        if message.retain:
            self._retained.store(message)
            self._change_count += 1
        return is_matched

    def _add_outgoing(
        self, session: Session, message: Message, qos: int, retain: bool, identifier: int
    ) -> Added:
        window = session.outgoing
        added = window.add(
            window.make_packet(message, qos, retain, identifier),
            message.expires_at,
            session.connection_id is not None,
            self._settings.max_queued_messages,
        )
        if added is Added.QUEUED:
            self._change_count += 1
        elif added is Added.DROPPED:
            self.dropped_count += 1
        return added

    def _send_pending(self, session: Session, second: int) -> None:
        for packet in session.outgoing.take_packets(second):
            self._send_publish(session, packet)

    def _send_publish(self, session: Session, packet: PublishPacket) -> None:
        if not session.is_v5 and (packet.properties or packet.subscription_ids):
            packet = PublishPacket(
                packet.topic,
                packet.payload,
                packet.qos,
                packet.retain,
                packet.dup,
                packet.packet_id,
            )
        self._send(session, packet)


def _expiry(session: Session) -> float:
    return NEVER if session.expires_at is None else session.expires_at
