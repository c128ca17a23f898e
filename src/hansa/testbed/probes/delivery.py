"""Finds out how a broker treats QoS 1 and 2 when clients break off: the evidence for its class.

Clients with names of their own break off at the worst moments on a topic of their own, and come
back. Their sessions are ended afterwards, whatever happened; nothing is retained. What follows from
what was seen is `hansa.agent.broker.delivery_class`. MQTT lets a client send again only on a new
connection, so every attempt is one *life*: a connection that is not made again.
"""

import asyncio
import random
import secrets
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.agent.broker.delivery_class import Proof
from hansa.errors import UsageError
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.limits import Limits
from hansa.mqtt.options import Options
from hansa.mqtt.types import Version
from hansa.testbed.clients import READY_TIMEOUT_S, until
from hansa.testbed.probes.advice import QUEUED_BY_DEFAULT

ANSWER_TIMEOUT_S = 1.0
"""How long an answer may take, or a publication, or what is sent again."""

UNDER_WAY = 4
"""Publications to a client that breaks off: fewer than any broker has under way at a time."""

QUEUE_TRIED = QUEUED_BY_DEFAULT + 200
"""Publications for a client that is away: more than Mosquitto keeps by default."""

QUEUE_TRIED_BRIEFLY = 20
"""So few fit into any queue: a broker that drops some counts them, and agents raise an alarm."""

QUEUE_TIMEOUT_S = 2.0
"""How long they may take to the broker, and back again; a broker far away gets fewer."""

MARK_INTERVAL_S = 0.05
QUIET_S = 0.3
"""How long nothing more of what was kept may come until that was all."""

SESSION_EXPIRY_S = 60
"""What ends the sessions of a doctor that was killed."""

QUEUED = b"queued"
MARK = b"mark"


class Life:
    """One connection of a client, from its beginning to the end that the probe gives it."""

    def __init__(self, address: BrokerAddress, options: Options, acknowledges: bool) -> None:
        """Prepare; `start` connects."""
        self.arrived: list[packets.Publish] = []
        self.answers: list[packets.Handshake] = []
        self.limits: Limits | None = None
        self.session_present = False
        self.granted_qos: int | None = None
        self.problem = ""
        """Why there is no connection any more."""
        self._address = address
        self._acknowledges = acknowledges
        self._connection = Connection(address, options, self._told, random.Random())
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect; raise UsageError if the broker does not let it."""
        self._running = asyncio.create_task(self._connection.run())
        await until(lambda: self.limits is not None or bool(self.problem), READY_TIMEOUT_S)
        if self.limits is None:
            raise UsageError(f"broker {self._address}: {self.problem or 'no answer'}")

    async def subscribe(self, topic: str) -> bool:
        """Subscribe at QoS 2; return whether the broker grants it, at whatever QoS."""
        self.order(inputs.Subscribe((packets.Subscription(topic, qos=2),)))
        await self.sees(lambda: self.granted_qos is not None)
        return self.granted_qos in (0, 1, 2)

    async def publish(self, publish: packets.Publish) -> bool:
        """Publish at QoS 1 or 2; return whether the broker says that it has it."""
        self.order(inputs.Publish([publish]))
        kind = packets.PubRec if publish.qos == 2 else packets.PubAck
        return await self.sees(lambda: self.has_answer(kind, publish.packet_id))

    async def release(self, packet_id: int) -> bool:
        """Send a PUBREL; return whether it is answered."""
        self.order(inputs.Answer([packets.PubRel(packet_id)]))
        return await self.sees(lambda: self.has_answer(packets.PubComp, packet_id))

    async def sees(self, condition: Callable[[], bool]) -> bool:
        """Wait for something while the connection stands; return whether it came."""
        await until(lambda: condition() or bool(self.problem), ANSWER_TIMEOUT_S)
        return condition()

    def has_answer(self, kind: type[packets.Handshake], packet_id: int) -> bool:
        """Whether a step of a handshake came; a PUBCOMP is one also when it knows no such id."""
        return any(
            type(each) is kind
            and each.packet_id == packet_id
            and (kind is packets.PubComp or not each.refused)
            for each in self.answers
        )

    def has_settled(self) -> bool:
        """Whether all that came at QoS 2 has been released; that is the broker's last word."""
        return all(
            self.has_answer(packets.PubRel, publish.packet_id)
            for publish in self.arrived
            if publish.qos == 2
        )

    def copies(self, payload: bytes) -> int:
        """How many publications with this payload came."""
        return sum(publish.payload == payload for publish in self.arrived)

    def queued(self, tried: int) -> int:
        """How many came of so many that were published while it was away."""
        payloads = self.ids_by_payload()
        return sum(b"%b %d" % (QUEUED, number) in payloads for number in range(1, tried + 1))

    def ids_by_payload(self) -> dict[bytes, int]:
        """Return what came, with its packet ids."""
        return {publish.payload: publish.packet_id for publish in self.arrived}

    @property
    def quota(self) -> int:
        """How many publications may now be ordered."""
        return self._connection.session.quota if self._connection.session else 0

    def order(self, event: inputs.Order) -> None:
        """Have the connection do something; one that has ended does nothing."""
        if not self.problem:
            self._connection.order(event)

    async def break_off(self) -> None:
        """Close the connection without a word."""
        if self._running is not None:
            self._connection.cut()
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            await until(lambda: self._connection.session is None, ANSWER_TIMEOUT_S)

    async def leave(self) -> None:
        """Close the connection as MQTT wants it."""
        await self._connection.leave()
        await self.break_off()

    def _told(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Connected(session_present=present, limits=limits):
                self.session_present, self.limits = present, limits
            case effects.PublishReceived(batch):
                self.arrived += batch
                if self._acknowledges:
                    self.order(inputs.Answer([_receipt(each) for each in batch if each.qos]))
            case effects.Answered(batch):
                self.answers += batch
                releases = [each for each in batch if isinstance(each, packets.PubRel)]
                if releases:
                    done = [packets.PubComp(each.packet_id) for each in releases]
                    self.order(inputs.Answer(done))
            case effects.Subscribed(reasons=reasons):
                self.granted_qos = reasons[0]
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self.problem = effect.text
                if self._running is not None:
                    self._running.cancel()  # it would connect again


def _receipt(publish: packets.Publish) -> packets.Handshake:
    kind = packets.PubRec if publish.qos == 2 else packets.PubAck
    return kind(publish.packet_id)


async def prove(
    address: BrokerAddress,
    tell: Callable[[str], None],
    version: Version = Version.V5,
    queue_tried: int = QUEUE_TRIED,
) -> Proof:
    """Try a broker, and leave nothing at it; raise UsageError if it does not let a client in.

    `tell` is told what is being tried. A broker that answers MQTT 5 with silence is tried with
    3.1.1 only if that is given; one that says no is tried with it anyway. `queue_tried`: how many
    publications are sent to a client that is away.
    """
    trial = _Trial(address, version, queue_tried)
    try:
        return await trial.run(tell)
    finally:
        await trial.clean_up()


class _Trial:
    """All that is tried at one broker."""

    def __init__(self, address: BrokerAddress, version: Version, queue_tried: int) -> None:
        self._address = address
        self._queue_tried = queue_tried
        self._name = f"hansa-doctor-{secrets.token_hex(4)}"
        self._topic = f"hansa/doctor/{self._name}"
        self._version = version
        self._lives: list[Life] = []
        self._roles: set[str] = set()

    async def run(self, tell: Callable[[str], None]) -> Proof:
        """Try one thing after the other, as long as that makes sense."""
        tell("QoS 2 that is sent again")
        listener = await self._begin("listener", lasts=False)
        sender = await self._begin("sender")
        if not (
            await listener.subscribe(self._topic)
            and await sender.publish(self._publication(b"first", 1, packet_id=1))
            and await listener.sees(lambda: bool(listener.copies(b"first")))
        ):
            return Proof()
        await sender.break_off()
        proof = await self._try_twice(listener)
        await listener.break_off()
        tell("a client that breaks off")
        proof = await self._try_breaking_off(proof)
        if proof.resumes:
            tell(f"{self._queue_tried} publications for a client that is away")
            proof = await self._try_queue(proof)
        return proof

    async def clean_up(self) -> None:
        """End all connections and sessions: a client that starts clean and leaves has none.

        It unsubscribes as well, or an agent beside the broker takes the topic for wanted for a
        while: how long a session of MQTT 5 lasts no line of the log tells.
        """
        await asyncio.gather(*(life.break_off() for life in self._lives))
        for role in sorted(self._roles):
            life = await self._begin(role, lasts=False)
            life.order(inputs.Unsubscribe((self._topic,)))
            await life.leave()

    # ------------------------------------------------------------ what is tried

    async def _try_twice(self, listener: Life) -> Proof:
        """Send a PUBLISH again before its PUBREL, and that again after its PUBCOMP."""
        sender = await self._begin("sender")
        once = self._publication(b"once", 2, packet_id=1)
        takes_qos_2 = listener.granted_qos == 2 and await sender.publish(once)
        await sender.break_off()
        if not takes_qos_2:
            return Proof(takes_qos_2=False)
        sender = await self._begin("sender")
        completes = (
            await sender.publish(self._publication(b"once", 2, packet_id=1, dup=True))
            and await sender.release(1)
            and await self._all_arrived(sender, listener, b"after PUBLISH")
        )
        copies = listener.copies(b"once")
        await sender.break_off()
        sender = await self._begin("sender")
        completes_again = (
            await sender.release(1)
            and await self._all_arrived(sender, listener, b"after PUBREL")
            and listener.copies(b"once") == copies
        )
        await sender.break_off()
        return Proof(
            takes_qos_2=True,
            delivers_once=completes and copies == 1,
            completes_again=completes_again,
        )

    async def _all_arrived(self, sender: Life, listener: Life, fence: bytes) -> bool:
        """Wait until what was sent before must have arrived: one more, behind it, has."""
        return (
            await sender.publish(self._publication(fence, 2, packet_id=2))
            and await sender.release(2)
            and await listener.sees(lambda: bool(listener.copies(fence)))
        )

    async def _try_breaking_off(self, proof: Proof) -> Proof:
        """Break off with publications under way to the client, and come back."""
        keeper = await self._begin("keeper", acknowledges=False)
        under_way = await self._put_under_way(keeper, qos_max=2 if proof.takes_qos_2 else 1)
        await keeper.break_off()
        keeper = await self._begin("keeper")
        if not keeper.session_present:
            return replace(proof, resumes=False)
        redelivers = await keeper.sees(lambda: keeper.ids_by_payload().keys() >= under_way.keys())
        await keeper.sees(keeper.has_settled)  # what is under way would take room in the queue
        await keeper.break_off()
        return replace(
            proof,
            resumes=True,
            redelivers=redelivers,
            keeps_ids=keeper.ids_by_payload() == under_way if redelivers else None,
            marks_dup=all(each.dup for each in keeper.arrived) if redelivers else None,
        )

    async def _put_under_way(self, keeper: Life, qos_max: int) -> dict[bytes, int]:
        """Send the keeper what it does not acknowledge; return the packet ids by payload."""
        await keeper.subscribe(self._topic)
        sender = await self._begin("sender")
        for packet_id in range(1, UNDER_WAY + 1):
            qos = min(qos_max, 1 + packet_id % 2)
            payload = b"under way %d" % packet_id
            await sender.publish(self._publication(payload, qos, packet_id))
            if qos == 2:
                await sender.release(packet_id)
        await keeper.sees(lambda: len(keeper.arrived) == UNDER_WAY)
        await sender.break_off()
        return keeper.ids_by_payload()

    async def _try_queue(self, proof: Proof) -> Proof:
        """Publish for the keeper, who is away, and count what it gets.

        That is unknown if it was still getting some when time was up.
        """
        sender = await self._begin("sender")
        tried = await self._fill_queue(sender)
        keeper = await self._begin("keeper")
        is_whole = await self._mark_end(sender, keeper)
        while is_whole and await self._gets_more(keeper, tried):
            pass
        queued = keeper.queued(tried)
        is_known = is_whole or not queued
        return replace(proof, queued=queued if is_known else None, queue_tried=tried)

    async def _gets_more(self, keeper: Life, tried: int) -> bool:
        """Whether the keeper gets more although the mark has come: some brokers send what was kept
        beside what is new."""
        before = keeper.queued(tried)
        return before < tried and await until(lambda: keeper.queued(tried) > before, QUIET_S)

    async def _mark_end(self, sender: Life, keeper: Life) -> bool:
        """Publish behind what was kept until that arrives: a full queue drops a mark as well.

        Return whether one arrived.
        """
        began = asyncio.get_running_loop().time()
        for packet_id in count(self._queue_tried + 1):
            if sender.quota:
                sender.order(inputs.Publish([self._publication(MARK, 1, packet_id)]))
            if await until(lambda: bool(keeper.copies(MARK)), MARK_INTERVAL_S):
                return True
            patience = QUEUE_TIMEOUT_S if keeper.arrived else ANSWER_TIMEOUT_S
            if asyncio.get_running_loop().time() - began > patience:
                break
        return False

    async def _fill_queue(self, sender: Life) -> int:
        """Publish as fast as the broker takes it; return how many it has acknowledged."""
        sent = 0
        deadline = asyncio.get_running_loop().time() + QUEUE_TIMEOUT_S
        while len(sender.answers) < self._queue_tried and not sender.problem:
            if asyncio.get_running_loop().time() > deadline:
                break
            ids = range(sent + 1, min(sent + sender.quota, self._queue_tried) + 1)
            batch = [self._publication(b"%b %d" % (QUEUED, each), 1, each) for each in ids]
            if batch:
                sender.order(inputs.Publish(batch))
            sent += len(batch)
            answered = len(sender.answers)
            await until(lambda: len(sender.answers) > answered, ANSWER_TIMEOUT_S)  # noqa: B023
        return len(sender.answers)

    # ------------------------------------------------------------ with what

    async def _begin(self, role: str, *, lasts: bool = True, acknowledges: bool = True) -> Life:
        options = Options(
            client_id=f"{self._name}-{role}",
            version=self._version,
            clean_start=not lasts,
            session_expiry=SESSION_EXPIRY_S if lasts else 0,
        )
        life = Life(self._address, options, acknowledges)
        self._lives.append(life)
        await life.start()
        self._roles.add(role)
        assert life.limits is not None
        self._version = life.limits.version
        return life

    def _publication(
        self, payload: bytes, qos: int, packet_id: int, *, dup: bool = False
    ) -> packets.Publish:
        return packets.Publish(self._topic, payload, qos, dup=dup, packet_id=packet_id)
