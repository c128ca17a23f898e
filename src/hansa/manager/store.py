"""The database of the manager, with all its SQL: SQLite by default, PostgreSQL by URL.

Every call is one transaction. A lock ensures one manager per database, so numbers of history and
audit are assigned here. A database error raises StoreUnavailable.
"""

import fcntl
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Engine, TextClause, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from hansa.errors import UsageError
from hansa.manager.migrations import migrate
from hansa.manager.rows import (
    AuditRow,
    HistoryRow,
    LinkOrigin,
    LinkRow,
    NodeRow,
    NodeState,
    TokenRow,
)

HISTORY_MAX = 100_000
CLAIM_KEY = 0x48414E5341
"""Key of the advisory lock in PostgreSQL."""

MODE = 0o600
"""Mode of the SQLite files, independent of the umask."""

AUDIT_MAX = 100_000
"""Limit of rows, as HISTORY_MAX; the oldest are deleted."""

_NODE_COLUMNS = (
    "id node name ip link capacity tags state draining joined_at latency_ms checked_at secret"
    " announced"
).split()
_SAVE_NODE = text(
    f"insert into node ({', '.join(_NODE_COLUMNS)})"
    f" values ({', '.join(':' + n for n in _NODE_COLUMNS)})"
    f" on conflict (id) do update set {', '.join(f'{n} = excluded.{n}' for n in _NODE_COLUMNS[1:])}"
)
_SAVE_LINK = text(
    "insert into link (a, b, origin, since) values (:a, :b, :origin, :since)"
    " on conflict (a, b) do update set origin = excluded.origin, since = excluded.since"
)
_DROP_LINK = text("delete from link where a = :a and b = :b")
_BAR = text("insert into barred (a, b) values (:a, :b) on conflict (a, b) do nothing")
_UNBAR = text("delete from barred where a = :a and b = :b")
_SAVE_SETTING = text(
    "insert into setting (name, value) values (:name, :value)"
    " on conflict (name) do update set value = excluded.value"
)
_SAVE_TOKEN = text(
    "insert into token (name, scopes, digest, created_at)"
    " values (:name, :scopes, :digest, :created_at) on conflict (name) do update set"
    " scopes = excluded.scopes, digest = excluded.digest, created_at = excluded.created_at"
)
_ADD_HISTORY = text(
    "insert into history (number, at, kind, nodes, reason)"
    " values (:number, :at, :kind, :nodes, :reason)"
)
_ADD_AUDIT = text(
    "insert into audit (number, at, who, remote, method, path, status)"
    " values (:number, :at, :who, :remote, :method, :path, :status)"
)


class StoreUnavailable(Exception):
    """The database failed or does not answer."""


def open_store(url: str) -> "ManagerStore":
    """Open a database and migrate it; raise UsageError if that is not possible."""
    try:
        address = make_url(url)
        if address.get_backend_name() not in ("sqlite", "postgresql"):
            raise UsageError(
                f"database {_without_password(url)!r}: it must be sqlite:///file or postgresql://…"
            )
        if address.drivername == "postgresql":
            address = address.set(drivername="postgresql+psycopg")
        engine = create_engine(address)
        if address.get_backend_name() == "sqlite":
            _protect(address.database or "")
            event.listen(engine, "connect", _prepare_sqlite)
        try:
            migrate(engine)
        except (SQLAlchemyError, UsageError):
            engine.dispose()
            raise
    except (ArgumentError, NoSuchModuleError, ValueError) as error:  # ValueError: invalid port
        shown = _without_password(url)
        raise UsageError(f"database {shown!r}: {_without_password(_first_line(error))}") from None
    except SQLAlchemyError as error:
        raise UsageError(f"database {_without_password(url)}: {_first_line(error)}") from error
    return ManagerStore(engine)


def _without_password(url: str) -> str:
    """Return a URL, which may be invalid, without user name and password."""
    if not url.startswith("sqlite:///"):  # the rest is a path, which may contain @
        url = re.sub(r":(//)?.*@", r":\1***@", url)
    return re.sub(r"(password=)[^&]*", r"\1***", url)


def _protect(path: str) -> None:
    """Make the database readable only by its owner, as it holds digests of tokens. SQLite gives the
    -wal and -shm files the mode of the database; existing files are changed too."""
    if not path or path == ":memory:" or path.startswith("file:"):
        return
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, MODE))
        for each in (path, f"{path}-wal", f"{path}-shm", f"{path}.lock"):
            if os.path.exists(each) and os.stat(each).st_mode & 0o777 != MODE:
                os.chmod(each, MODE)
    except PermissionError as error:
        raise UsageError(
            f"database {path}: {error.strerror}; the file and its directory must belong to the user"
            " of the manager; or choose another file with --database sqlite:////PATH"
        ) from error
    except OSError as error:
        raise UsageError(f"database {path}: {error.strerror}") from error


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, MODE)


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = normal")
    connection.execute("pragma busy_timeout = 5000")


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0]


class ManagerStore:
    def __init__(self, engine: Engine) -> None:
        """`engine`: its database must be migrated."""
        self._engine = engine
        self._audit_lock = threading.Lock()
        self._lock_resources = ExitStack()
        with engine.connect() as connection:
            self._last_history_number = _last_number(connection, "history")
            self._last_audit_number = _last_number(connection, "audit")

    def close(self) -> None:
        """Close all connections and release the lock."""
        self._lock_resources.close()
        self._engine.dispose()

    def acquire_lock(self) -> None:
        """Lock the database until it is closed or the process ends; raise UsageError if another
        manager uses it."""
        if not self._try_lock():
            self._lock_resources.close()
            raise UsageError("another manager uses this database: stop it, or use another one")

    def _try_lock(self) -> bool:
        if self._engine.url.get_backend_name() == "sqlite":
            file = self._lock_resources.enter_context(
                open(f"{self._engine.url.database}.lock", "w", opener=_open_private)
            )
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True
        connection = self._lock_resources.enter_context(self._engine.connect())
        # The server releases the lock with the connection.
        query = text("select pg_try_advisory_lock(:key)")
        is_locked = bool(connection.execute(query, {"key": CLAIM_KEY}).scalar())
        connection.commit()
        return is_locked

    @property
    def version(self) -> int:
        """Number of the newest change."""
        return self._last_history_number

    # ------------------------------------------------------------ nodes and links

    def nodes(self) -> list[NodeRow]:
        rows = self._read(f"select {', '.join(_NODE_COLUMNS)} from node order by id")
        return [
            NodeRow(
                **row
                | {
                    "tags": tuple(json.loads(row["tags"])),
                    "state": NodeState(row["state"]),
                    "draining": bool(row["draining"]),
                    "announced": bool(row["announced"]),
                }
            )
            for row in rows
        ]

    def links(self) -> list[LinkRow]:
        rows = self._read("select a, b, origin, since from link order by a, b")
        return [LinkRow(**row | {"origin": LinkOrigin(row["origin"])}) for row in rows]

    def barred(self) -> list[tuple[int, int]]:
        """Return the links that an operator removed."""
        return [(row["a"], row["b"]) for row in self._read("select a, b from barred order by a, b")]

    def save(
        self,
        nodes: Iterable[NodeRow] = (),
        links: Iterable[LinkRow] = (),
        dropped: Iterable[tuple[int, int]] = (),
        barred: Iterable[tuple[int, int]] = (),
        history: Iterable[tuple[float, str, tuple[int, ...], str]] = (),
    ) -> list[HistoryRow]:
        """Write changes in one transaction; return their rows of the history.

        A barred link is also dropped; a saved link is no longer barred.
        """
        new_rows = [
            HistoryRow(self._last_history_number + n, *each) for n, each in enumerate(history, 1)
        ]
        with self._transaction() as connection:
            _execute_many(connection, _SAVE_NODE, [_node_values(node) for node in nodes])
            saved = [asdict(link) for link in links]
            _execute_many(connection, _SAVE_LINK, saved)
            _execute_many(connection, _UNBAR, [{"a": link["a"], "b": link["b"]} for link in saved])
            _execute_many(
                connection, _DROP_LINK, [{"a": a, "b": b} for a, b in (*dropped, *barred)]
            )
            _execute_many(connection, _BAR, [{"a": a, "b": b} for a, b in barred])
            _execute_many(
                connection,
                _ADD_HISTORY,
                [asdict(row) | {"nodes": json.dumps(row.nodes)} for row in new_rows],
            )
            if new_rows:
                _trim(connection, "history", new_rows[-1].number - HISTORY_MAX)
        self._last_history_number += len(new_rows)
        return new_rows

    def history(self, after: int = 0, limit: int = 100) -> list[HistoryRow]:
        """Return the changes after a number, the oldest first."""
        rows = self._read(
            "select number, at, kind, nodes, reason from history where number > :after"
            " order by number limit :limit",
            after=after,
            limit=limit,
        )
        return [HistoryRow(**row | {"nodes": tuple(json.loads(row["nodes"]))}) for row in rows]

    # ------------------------------------------------------------ settings, tokens, audit

    def settings(self) -> dict[str, Any]:
        rows = self._read("select name, value from setting order by name")
        return {row["name"]: json.loads(row["value"]) for row in rows}

    def save_settings(self, values: dict[str, Any]) -> None:
        with self._transaction() as connection:
            given = [{"name": name, "value": json.dumps(value)} for name, value in values.items()]
            _execute_many(connection, _SAVE_SETTING, given)

    def tokens(self) -> list[TokenRow]:
        rows = self._read("select name, scopes, digest, created_at from token order by name")
        return [TokenRow(**row | {"scopes": tuple(row["scopes"].split(","))}) for row in rows]

    def save_token(self, token: TokenRow) -> None:
        """Add a token, or replace the one with its name."""
        with self._transaction() as connection:
            values = asdict(token) | {"scopes": ",".join(token.scopes)}
            connection.execute(_SAVE_TOKEN, values)

    def drop_token(self, name: str) -> bool:
        """Remove a token; return whether there was one."""
        with self._transaction() as connection:
            done = connection.execute(text("delete from token where name = :name"), {"name": name})
            return done.rowcount > 0

    def add_audit(self, at: float, who: str, remote: str, request: tuple[str, str, int]) -> None:
        with self._audit_lock:  # requests end in several threads, and numbers must be unique
            row = AuditRow(self._last_audit_number + 1, at, who, remote, *request)
            with self._transaction() as connection:
                connection.execute(_ADD_AUDIT, asdict(row))
                _trim(connection, "audit", row.number - AUDIT_MAX)
            self._last_audit_number += 1

    def audit(self, after: int = 0, limit: int = 100) -> list[AuditRow]:
        """Return the audit log after a number, the oldest first."""
        rows = self._read(
            "select number, at, who, remote, method, path, status from audit"
            " where number > :after order by number limit :limit",
            after=after,
            limit=limit,
        )
        return [AuditRow(**row) for row in rows]

    # ------------------------------------------------------------ statements

    def _read(self, statement: str, **values: object) -> list[dict[str, Any]]:
        try:
            with self._engine.connect() as connection:
                return [dict(row) for row in connection.execute(text(statement), values).mappings()]
        except SQLAlchemyError as error:
            raise StoreUnavailable(_first_line(error)) from error

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreUnavailable(_first_line(error)) from error


def _node_values(node: NodeRow) -> dict[str, Any]:
    flags = {"draining": int(node.draining), "announced": int(node.announced)}
    return asdict(node) | flags | {"tags": json.dumps(node.tags)}


def _execute_many(
    connection: Connection, statement: TextClause, values: list[dict[str, Any]]
) -> None:
    if values:
        connection.execute(statement, values)


def _last_number(connection: Connection, table: str) -> int:
    return int(connection.execute(text(f"select max(number) from {table}")).scalar() or 0)


def _trim(connection: Connection, table: str, last: int) -> None:
    if last > 0:
        connection.execute(text(f"delete from {table} where number <= :last"), {"last": last})
