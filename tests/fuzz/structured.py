"""Inputs of the fuzzers: values of any msgspec type, and damaged bytes. Same seed, same inputs."""

import random
from typing import Any

from msgspec import inspect

INTEGERS = (0, 1, 2, 7, 255, 1_024, 1 << 31, (1 << 32) - 1, 1 << 53, (1 << 63) - 1, (1 << 64) - 1)
TEXTS = (
    "",
    "a",
    "a/b",
    "#",
    "+/x",
    "$SYS/#",
    "$share/g/#",
    "a\x00b",
    "\x1b[31m",
    "ä" * 50,
    "/" * 99,
)
ITEMS_MAX = 4
DEPTH_MAX = 8


def make_value(  # noqa: C901 -- one case per type
    info: inspect.Type, rng: random.Random, known: tuple[int, ...], depth: int = 0
) -> Any:
    """Return a random value of a type; `known` are integers that mean something to the target."""
    match info:
        case inspect.IntType():
            return rng.choice(known) if rng.random() < 0.5 else rng.choice(INTEGERS)
        case inspect.StrType():
            return rng.choice(TEXTS)
        case inspect.BytesType() | inspect.RawType():
            return rng.randbytes(rng.choice((0, 1, 12, 16, 32, 64, 300)))
        case inspect.FloatType():
            return rng.choice((0.0, 1.0, -1.0, 1e308))
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.UnionType(types):
            return make_value(rng.choice(types), rng, known, depth)
        case inspect.VarTupleType(item) | inspect.ListType(item):
            count = rng.randrange(ITEMS_MAX) if depth < DEPTH_MAX else 0
            return tuple(make_value(item, rng, known, depth + 1) for _ in range(count))
        case inspect.TupleType(items):
            return tuple(make_value(each, rng, known, depth + 1) for each in items)
        case inspect.StructType(cls, fields):
            values = {f.name: make_value(f.type, rng, known, depth + 1) for f in fields}
            return cls(**values)
        case inspect.EnumType(cls):
            return rng.choice(list(cls))
        case inspect.LiteralType(values):
            return rng.choice(values)
        case inspect.NoneType():
            return None
        case inspect.CustomType(cls):
            return cls(rng.choice(known))
    raise AssertionError(f"no values for {info}")


def types_of(union: Any) -> list[inspect.Type]:
    """Return the members of a union, to choose each as often."""
    found = inspect.type_info(union)
    return list(found.types) if isinstance(found, inspect.UnionType) else [found]


def damage(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Return bytes with a few changes: bits, deleted, repeated and inserted parts."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(7):
            case 0 if changed:
                changed[at - 1] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at : at + rng.randrange(1, 16)]
            case 2:
                changed[at:at] = changed[at : at + rng.randrange(1, 64)]
            case 3:
                changed[at:at] = rng.randbytes(rng.randrange(1, 16))
            case 4:
                changed[at : at + 4] = rng.choice(
                    (b"\x00" * 4, b"\xff" * 4, b"\x80\0\0\0", b"\x7f" * 4)
                )
            case 5:
                del changed[at:]
            case _ if others:
                changed[at:] = rng.choice(others)
    return bytes(changed[:70_000])
