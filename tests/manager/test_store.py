import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from hansa.errors import UsageError
from hansa.manager import store as module
from hansa.manager.migrations import STEPS, migrate
from hansa.manager.rows import (
    AuditRow,
    HistoryRow,
    LinkOrigin,
    LinkRow,
    NodeRow,
    NodeState,
    TokenRow,
)
from hansa.manager.store import ManagerStore, StoreUnavailable, open_store

NODE = NodeRow(
    0, "00000000000000aa", "ä ' \" node", "tcp://a:1883", "a:10500", 2.5, ("eu", "dc-1"),
    NodeState.UP, False, 100.0,
)  # fmt: skip


def test_saved_rows_are_read_after_reopening(database):
    first = open_store(database)
    link = LinkRow(0, 1, LinkOrigin.PLANNED, 5.0)
    later = NODE.with_changes(
        id=1, latency_ms=0.25, checked_at=101.5, draining=True, state=NodeState.GONE
    )
    saved = first.save([NODE, later], [link], history=[(7.0, "joined", (0, 1), "because")])
    assert saved == [HistoryRow(1, 7.0, "joined", (0, 1), "because")]
    first.close()
    second = open_store(database)
    assert second.nodes() == [NODE, later]
    assert second.links() == [link]
    assert second.history() == saved
    assert second.save(history=[(8.0, "left", (), "")])[0].number == 2
    second.close()


def test_saving_replaces_rows(store: ManagerStore):
    store.save([NODE], [LinkRow(0, 1, LinkOrigin.PLANNED, 1.0)])
    store.save([NODE.with_changes(name="b")], [LinkRow(0, 1, LinkOrigin.OPERATOR, 2.0)])
    assert [node.name for node in store.nodes()] == ["b"]
    assert store.links() == [LinkRow(0, 1, LinkOrigin.OPERATOR, 2.0)]


def test_barred_link_is_dropped_until_saved(store: ManagerStore):
    store.save(
        links=[LinkRow(0, 1, LinkOrigin.PLANNED, 1.0), LinkRow(1, 2, LinkOrigin.PLANNED, 1.0)]
    )
    store.save(dropped=[(1, 2)], barred=[(0, 1)])
    assert (store.links(), store.barred()) == ([], [(0, 1)])
    store.save(links=[LinkRow(0, 1, LinkOrigin.OPERATOR, 3.0)])
    assert (len(store.links()), store.barred()) == (1, [])


def test_history_and_audit_are_paged_and_bounded(store: ManagerStore, monkeypatch):
    monkeypatch.setattr(module, "HISTORY_MAX", 3)
    monkeypatch.setattr(module, "AUDIT_MAX", 3)
    for number in range(1, 6):
        store.save(history=[(float(number), "joined", (number,), "")])
        store.add_audit(float(number), "ops", "127.0.0.1", ("POST", "/api/v1/join", 200))
    assert [row.number for row in store.history()] == [3, 4, 5]
    assert [row.number for row in store.history(after=3, limit=1)] == [4]
    assert store.audit(after=4) == [
        AuditRow(5, 5.0, "ops", "127.0.0.1", "POST", "/api/v1/join", 200)
    ]
    assert [row.number for row in store.audit()] == [3, 4, 5]


def test_concurrent_audit_entries_are_all_written(store: ManagerStore):
    def note(number: int) -> None:
        store.add_audit(1.0, "ops", "127.0.0.1", ("POST", f"/{number}", 200))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(note, range(40)))
    assert [row.number for row in store.audit()] == list(range(1, 41))


def test_settings_and_tokens(store: ManagerStore):
    store.save_settings({"degree_max": 5, "redundancy": 2})
    store.save_settings({"degree_max": 7})
    assert store.settings() == {"degree_max": 7, "redundancy": 2}
    token = TokenRow("agents", ("join", "read"), "aa", 1.0)
    store.save_token(token)
    assert store.tokens() == [token]
    assert store.drop_token("agents")
    assert not store.drop_token("agents")


def test_failed_write_is_rolled_back(store: ManagerStore):
    store.save([NODE])
    bad = NODE.with_changes(id=1, name=None)
    with pytest.raises(StoreUnavailable):
        store.save([NODE.with_changes(name="half"), bad], history=[(1.0, "joined", (), "")])
    assert [node.name for node in store.nodes()] == [NODE.name]
    assert store.history() == []
    assert store.save(history=[(2.0, "joined", (), "")])[0].number == 1


def test_migrations_are_applied_once_from_any_version(database):
    address = database.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(address)
    assert migrate(engine, STEPS[:1]) == 1
    with engine.begin() as connection:
        connection.execute(text("insert into setting (name, value) values ('kept', '1')"))
    assert migrate(engine) == len(STEPS) - 1
    assert migrate(engine) == 0
    engine.dispose()
    opened = open_store(database)
    assert opened.settings() == {"kept": 1}
    assert opened.tokens() == []
    opened.close()


def test_database_of_a_newer_version_is_refused(database):
    opened = open_store(database)
    opened.close()
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    migrate(engine, (*STEPS, ("create table later (x bigint)",)))
    engine.dispose()
    with pytest.raises(UsageError, match="newer version"):
        open_store(database)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "database 'nonsense'"),
        ("mysql://x/y", "it must be sqlite:///file or postgresql://"),
        ("sqlite:////no/such/folder/x.db", "x.db: No such file or directory"),
        ("postgresql://u:secret@127.0.0.1:1/x", "database postgresql"),
        ("mysql://u:secret@h/d", "database 'mysql://.*@h/d': it must be sqlite"),
        ("mysql://u:x@secret@h/d", "database 'mysql://.*@h/d': it must be sqlite"),
        ("unheard://u:secret@h/d", "database 'unheard://.*@h/d'"),
        ("postgresql+unheard://u:secret@h/d", "database 'postgresql.unheard://.*@h/d'"),
        ("u:secret@h/d", "database 'u:.*@h/d'"),
        ("postgresql://u:secret@h:port/d", "database 'postgresql://.*@h:port/d'"),
        ("postgresql://127.0.0.1:1/d?password=secret", "database postgresql://127.0.0.1:1/d"),
        ("sqlite://u:secret@h/d", "Invalid SQLite URL"),
    ],
)
def test_error_of_opening_hides_the_password(url, said):
    with pytest.raises(UsageError, match=said) as raised:
        open_store(url)
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_database_is_locked_by_one_manager(database):
    first, second = open_store(database), open_store(database)
    first.acquire_lock()
    with pytest.raises(UsageError, match="another manager uses this database"):
        second.acquire_lock()
    first.close()
    second.close()
    third = open_store(database)
    third.acquire_lock()
    third.close()


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.mark.usefixtures("open_umask")
def test_database_files_are_readable_by_their_owner_only(tmp_path):
    place = tmp_path / "m.db"
    files = ("m.db", "m.db-wal", "m.db-shm", "m.db.lock")
    store = open_store(f"sqlite:///{place}")
    store.acquire_lock()
    store.save_settings({"redundancy": 3})
    assert modes(tmp_path) == dict.fromkeys(files, 0o600)
    store.close()
    for path in tmp_path.iterdir():  # as in an earlier version
        path.chmod(0o644)
    store = open_store(f"sqlite:///{place}")
    store.acquire_lock()
    store.save_settings({"redundancy": 2})
    assert modes(tmp_path) == dict.fromkeys(files, 0o600)
    store.close()
