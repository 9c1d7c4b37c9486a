"""Every kind of message of parties' jobs is searched for values, thresholds and ids.

Only those may have them that say so in their disclosure, from which docs/who-sees-what.md is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dealer_bench import recorded_dealing
from hidden_bench import recorded_hidden
from key_bench import recorded_keys
from led_bench import recorded_led
from party_bench import Recorded, recorded_jobs, recorded_others, recorded_rows
from share_bench import recorded_shares

from wire_search import disguised, floats, opened, search
from woodlot.protocols.core.message import registered
from woodlot.runtime.codec import encode

pytestmark = pytest.mark.slow

SHORT_HITS = 4
RECORDS = (
    recorded_jobs, recorded_others, recorded_rows, recorded_keys, recorded_led, recorded_hidden, recorded_dealing,
    recorded_shares,
)  # fmt: skip
WORDS = ("threshold", "values", "splits")
"""What the disclosure of a message says that has numbers of a column."""


def needles(root: Path) -> dict[str, list[bytes]]:
    """What the tables and the models of a bench hold."""
    values, ids = list[Any](), set[int]()
    for path in root.glob("*/*.parquet"):
        table = pq.read_table(path)
        ids |= set(table["id"].to_pylist())
        values += [table[f.name].to_numpy() for f in table.schema if pa.types.is_floating(f.type)]
    for path in root.rglob("arrays.npz"):
        with np.load(path) as arrays:
            values += [arrays[name] for name in arrays.files if name == "threshold"]
    found = {"numbers of columns": list(floats(np.unique(np.concatenate(values))))}
    long = [number for number in ids if number > 2**32]  # shorter ones are found by chance
    return found | ({"ids": list(disguised(forms_of(long)))} if long else {})


def forms_of(ids: Iterable[int]) -> Iterator[bytes]:
    """Ids as whole numbers, as floats, and in digits."""
    for number in ids:
        for dtype in ("<u8", ">u8", "<f8", ">f8"):
            yield np.array(number, dtype).tobytes()
        yield str(number).encode()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_no_message_has_more_than_it_says(
    record: Callable[[Path], AbstractContextManager[Recorded]], tmp_path: Path
) -> None:
    with record(tmp_path) as recorded:
        items = [item for message in recorded.said for item in opened(encode(message))]
        found = search(needles(tmp_path), items, short_hits=SHORT_HITS)
    assert len({name for name, _ in items}) >= 10
    assert "ids" not in found
    assert record is not recorded_rows or found, "forests over rows have thresholds, and the search finds them"
    for name in sorted(found.get("numbers of columns", ())):
        told = registered()[name].discloses
        assert told.form == "clear", name
        assert any(word in told.reveals for word in WORDS), f"{name}: {told.reveals}"
