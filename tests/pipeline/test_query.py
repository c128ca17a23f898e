"""Which names of nodes a statement gets beside their ids."""

import re

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from hansa.pipeline.query import NODE_COLUMNS, named_columns

ALL = {*NODE_COLUMNS}


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("select topic, count(*) from messages group by topic order by 2 desc", set()),
        ("select count( * ) from deliveries", set()),
        ("select Origin_Name from deliveries where `receiver_name` = 'a'",
         {"origin_id", "receiver_id"}),
        ("select node_id from nodes", set()),
        ("select * from deliveries", ALL),
        ("select d.* from deliveries d", ALL),
        ("select hops * 2 from deliveries", ALL),
        ("select count(1) from deliveries natural join hops", ALL),
        ("table deliveries", ALL),
        ("from deliveries |> limit 1", ALL),
        ("describe deliveries", ALL),
        ("show tables", ALL),
    ],
)  # fmt: skip
def test_names_are_joined_if_a_statement_can_use_them(sql, columns):
    mentioned = {word.lower() for word in re.findall(r"\w+", sql)}
    assert named_columns(sql, mentioned) == columns
