"""Questions between agents over the overlay: each agent can report for the whole federation.

A question is a small JSON document, its answer a compressed one of at most
`QUERY_RESPONSE_BYTES_MAX` bytes. Nothing is sent without a question. Answers to one node are
limited in rate, and all answers together, so that questions cannot slow down forwarding. A node
whose role does not allow it to ask gets a refusal with the reason.
"""

import asyncio
import secrets
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from hansa.agent.token_bucket import TokenBucket
from hansa.errors import HansaError
from hansa.protocol.effects import QueryReceived, QueryResponseReceived
from hansa.protocol.events import QueryAnswered, QueryRequested
from hansa.protocol.model import NodeId
from hansa.protocol.wire.bounds import QUERY_BYTES_MAX, QUERY_RESPONSE_BYTES_MAX

ATTEMPTS = 3
"""How often a question is sent; each further attempt takes another path, if there is one."""

ATTEMPT_TIMEOUT_S = 1.0

PENDING_MAX = 4_096
"""Questions of this agent without an answer."""

ANSWER_BYTES_MAX = 4 << 20
"""Bytes of an answer after decompression."""

ERROR_CHARS_MAX = 256

ANSWER_DEPTH_MAX = 32
"""Levels of lists and objects in an answer: deeper ones could be read, but not written again."""

ANSWERS_PER_NODE_S = 20.0
"""Answers per second to one node."""

ANSWERS_S = 200.0
"""Answers per second to all nodes together."""

ANSWER_BURST_S = 2.0
"""Seconds whose answers may be sent at once."""

ASKING_NODES_MAX = 1_024
"""Asking nodes whose rate is remembered."""

COMPRESSION_LEVEL = 1
"""The fastest: an answer must not hold up publications."""

Question = dict[str, Any]
Answerer = Callable[[Question, NodeId], object]
"""Returns the answer to a question of a node as JSON values; raises ValueError for one that it does
not know or refuses."""


class QueryFailed(HansaError):
    """A node gave no answer; the text says why."""


class QueryService:
    """Asks other agents, and answers them."""

    def __init__(
        self,
        feed: Callable[[QueryRequested | QueryAnswered], None],
        answerer: Answerer,
        clock: Callable[[], float],
        may_ask: Callable[[NodeId], bool] = lambda node: True,
    ) -> None:
        """`feed` passes an event to the node; `may_ask` says whether a node's role allows it to
        ask."""
        self.counters: Counter[str] = Counter()
        self._feed = feed
        self._answerer = answerer
        self._clock = clock
        self._may_ask = may_ask
        self._pending: dict[tuple[NodeId, int], asyncio.Future[bytes]] = {}
        self._per_node: OrderedDict[NodeId, TokenBucket] = OrderedDict()
        self._all_nodes = TokenBucket(ANSWERS_S, ANSWER_BURST_S, clock())

    async def ask(self, node: NodeId, question: Question) -> Any:
        """Return the answer of another node; raise QueryFailed without one."""
        data = msgspec.json.encode(question)
        if len(data) > QUERY_BYTES_MAX:
            raise QueryFailed(f"the question has {len(data)} bytes, the limit is {QUERY_BYTES_MAX}")
        if len(self._pending) >= PENDING_MAX:
            raise QueryFailed("too many questions at once")
        number = secrets.randbits(63)  # only the asked node can know it
        answer = asyncio.get_running_loop().create_future()
        self._pending[node, number] = answer
        try:
            for _ in range(ATTEMPTS):
                self._feed(QueryRequested(node, number, data))
                await asyncio.wait((answer,), timeout=ATTEMPT_TIMEOUT_S)
                if answer.done():
                    return _unpack(answer.result())
        finally:
            del self._pending[node, number]
        raise QueryFailed(f"no answer within {ATTEMPTS * ATTEMPT_TIMEOUT_S:.0f} s")

    def perform(self, effect: QueryReceived | QueryResponseReceived) -> None:
        """Answer a question of another node, or take the answer to our question."""
        if isinstance(effect, QueryResponseReceived):
            answer = self._pending.get((effect.source, effect.number))
            if answer is None:
                self.counters["late answers of other agents"] += 1
            elif not answer.done():
                answer.set_result(effect.data)
            return
        if not self._may_answer(effect.source):
            self.counters["refused: too many questions of other agents"] += 1
            return
        if self._may_ask(effect.source):
            self.counters["answers to other agents"] += 1
            data = self._answer(effect.data, effect.source)
        else:
            self.counters["refused: question of an agent whose role does not allow it"] += 1
            data = _REFUSED_BY_ROLE
        self._feed(QueryAnswered(effect.source, effect.number, data))

    def _may_answer(self, node: NodeId) -> bool:
        now = self._clock()
        bucket = self._per_node.get(node)
        if bucket is None:
            bucket = self._per_node[node] = TokenBucket(ANSWERS_PER_NODE_S, ANSWER_BURST_S, now)
            if len(self._per_node) > ASKING_NODES_MAX:
                self._per_node.popitem(last=False)
        self._per_node.move_to_end(node)
        return bucket.take(now) and self._all_nodes.take(now)

    def _answer(self, data: bytes, source: NodeId) -> bytes:
        try:
            question = msgspec.json.decode(data, type=dict[str, Any])
            packed = _pack(self._answerer(question, source))
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            self.counters["invalid questions of other agents"] += 1
            return _pack({"error": str(error)[:ERROR_CHARS_MAX]})
        if len(packed) > QUERY_RESPONSE_BYTES_MAX:
            return _pack({"error": f"the answer has {len(packed)} bytes, which is too large"})
        return packed


def _pack(value: object) -> bytes:
    return zlib.compress(msgspec.json.encode(value), COMPRESSION_LEVEL)


_REFUSED_BY_ROLE = _pack({"error": "refused: the role of the asking node does not allow it"})


def _unpack(data: bytes) -> Any:
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(data, ANSWER_BYTES_MAX)
        if not inflater.eof:
            raise QueryFailed("the answer is too large or incomplete")
        answer = msgspec.json.decode(text)
    except (zlib.error, msgspec.MsgspecError, RecursionError) as error:
        raise QueryFailed("the answer cannot be read") from error
    if isinstance(answer, dict) and "error" in answer:
        raise QueryFailed(str(answer["error"])[:ERROR_CHARS_MAX])
    if _is_deep(answer):
        raise QueryFailed("the answer cannot be read")
    return answer


def _is_deep(value: Any) -> bool:
    """Whether a value has more levels than ANSWER_DEPTH_MAX."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(ANSWER_DEPTH_MAX):
        lists = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for inner in lists for each in inner if isinstance(each, dict | list)]
        if not level:
            return False
    return True
