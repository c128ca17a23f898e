"""Migrations of the database: numbered steps, each applied once, in order.

A released step is never changed; changes are new steps. The SQL is valid for SQLite and PostgreSQL.
"""

from sqlalchemy import Connection, Engine, text

from hansa.errors import UsageError

STEPS: tuple[tuple[str, ...], ...] = (
    (
        """create table node (
            id bigint primary key, node text not null, name text not null, ip text not null,
            link text not null, capacity double precision not null, tags text not null,
            state text not null, draining bigint not null, joined_at double precision not null,
            latency_ms double precision, checked_at double precision)""",
        """create table link (
            a bigint not null, b bigint not null, origin text not null,
            since double precision not null, primary key (a, b))""",
        "create table barred (a bigint not null, b bigint not null, primary key (a, b))",
        """create table history (
            number bigint primary key, at double precision not null, kind text not null,
            nodes text not null, reason text not null)""",
        "create table setting (name text primary key, value text not null)",
    ),
    (
        """create table token (
            name text primary key, scopes text not null, digest text not null unique,
            created_at double precision not null)""",
        """create table audit (
            number bigint primary key, at double precision not null, who text not null,
            remote text not null, method text not null, path text not null,
            status bigint not null)""",
    ),
    (
        "alter table node add column secret text not null default ''",
        "alter table node add column announced bigint not null default 0",
    ),
)


def migrate(engine: Engine, steps: tuple[tuple[str, ...], ...] = STEPS) -> int:
    """Apply missing steps; return their number. Raise UsageError if the database is newer."""
    with engine.begin() as connection:
        connection.execute(
            text("create table if not exists schema_step (number bigint primary key)")
        )
    taken = 0
    for number, statements in enumerate(steps, 1):
        with engine.begin() as connection:
            if number > _newest(connection):
                for statement in statements:
                    connection.execute(text(statement))
                connection.execute(
                    text("insert into schema_step (number) values (:number)"), {"number": number}
                )
                taken += 1
    with engine.connect() as connection:
        if _newest(connection) > len(steps):
            raise UsageError("the database was made by a newer version of Hansa")
    return taken


def _newest(connection: Connection) -> int:
    found = connection.execute(text("select max(number) from schema_step")).scalar()
    return int(found or 0)
