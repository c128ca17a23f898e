"""Commits run one after another in a thread; the event loop gets each result."""

import asyncio
import threading

from hansa.agent.delivery.commit_thread import CommitThread

PATIENCE = 20.0


def test_results_arrive_in_order_in_the_event_loop():
    results: list[tuple[Exception | None, bool]] = []
    failure = OSError("no space")

    def fail() -> None:
        raise failure

    async def scenario() -> None:
        ended = asyncio.Event()

        def on_done(error: Exception | None) -> None:
            results.append((error, threading.current_thread() is threading.main_thread()))
            if len(results) == 3:
                ended.set()

        thread = CommitThread()
        for commit in (lambda: 1, fail, lambda: 3):
            thread.start_commit(commit, on_done)
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
        await thread.stop()

    asyncio.run(scenario())
    assert results == [(None, True), (failure, True), (None, True)]


def test_stop_waits_for_the_running_commit():
    may_end = threading.Event()
    done: list[str] = []

    def commit() -> None:
        assert may_end.wait(PATIENCE)
        done.append("commit")

    async def scenario() -> None:
        thread = CommitThread()
        thread.start_commit(commit, lambda _: None)
        stopping = asyncio.create_task(thread.stop())
        await asyncio.sleep(0)
        may_end.set()
        await stopping
        done.append("stop")

    asyncio.run(scenario())
    assert done == ["commit", "stop"]


def test_stop_without_a_commit_returns():
    asyncio.run(CommitThread().stop())
