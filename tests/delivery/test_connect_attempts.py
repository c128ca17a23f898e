"""Connection attempts: when the session at the broker is uncertain."""

from hansa.delivery.connect_attempts import SESSION_UNCERTAIN, UNCERTAIN_ALARM, ConnectAttempts
from hansa.delivery.context import Context
from hansa.delivery.effects import RemoveConnectMarker, SetAlarm


class Incarnation:
    """The attempts of one incarnation; the marker outlives it."""

    def __init__(self, is_marked: bool = False) -> None:
        self._context = Context(lambda: 0)
        self._attempts = ConnectAttempts(self._context, is_marked)
        self._is_marked = is_marked
        self.alarm = ""

    def has_marker(self) -> bool:
        """Whether the marker is on disk."""
        return self._is_marked

    def connect(self) -> None:
        self._is_marked = True
        self._attempts.on_connect_started()

    def refuse(self) -> None:
        self._attempts.on_connect_refused()
        self._perform()

    def keep_session(self) -> bool:
        """The broker reports a session; return whether it is uncertain."""
        before = self._context.counters["broker sessions uncertain"]
        self._attempts.on_session_kept()
        self._perform()
        return self._context.counters["broker sessions uncertain"] > before

    def lose_session(self) -> None:
        self._attempts.on_session_lost()
        self._perform()

    def make_loss_durable(self) -> None:
        self._attempts.on_loss_durable()
        self._perform()

    def _perform(self) -> None:
        for effect in self._context.take_effects():
            match effect:
                case RemoveConnectMarker():
                    self._is_marked = False
                case SetAlarm(name, text):
                    assert name == UNCERTAIN_ALARM
                    self.alarm = text


def test_session_is_uncertain_after_a_crash_while_connecting():
    first = Incarnation()
    first.connect()
    second = Incarnation(first.has_marker())
    second.connect()
    assert second.keep_session()
    assert (second.alarm, second.has_marker()) == (SESSION_UNCERTAIN, False)
    second.connect()
    assert not second.keep_session()
    assert (second.alarm, second.has_marker()) == ("", False)


def test_session_is_uncertain_after_a_missing_connack_and_not_after_a_refusal():
    agent = Incarnation()
    agent.connect()
    agent.refuse()
    assert not agent.has_marker()
    agent.connect()
    agent.connect()
    agent.refuse()
    assert agent.has_marker(), "the first attempt is still unknown"
    agent.connect()
    assert agent.keep_session()


def test_known_loss_is_not_uncertain():
    agent = Incarnation(is_marked=True)
    agent.connect()
    agent.lose_session()
    agent.connect()
    assert not agent.keep_session()


def test_session_loss_clears_the_alarm():
    agent = Incarnation(is_marked=True)
    agent.connect()
    agent.keep_session()
    agent.connect()
    agent.lose_session()
    assert agent.alarm == ""


def test_marker_stays_until_the_session_loss_is_durable_and_connack_has_arrived():
    agent = Incarnation()
    agent.connect()
    agent.lose_session()
    agent.connect()
    agent.keep_session()
    assert agent.has_marker(), "after a crash the loss would be unknown"
    agent.connect()
    agent.make_loss_durable()
    assert agent.has_marker(), "the last CONNECT has no CONNACK yet"
    agent.keep_session()
    assert not agent.has_marker()
