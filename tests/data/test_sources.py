"""A party's tables from files: read right, refused with a reason, and known again by their digest."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import json
import os
import struct
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.data.columns import CategoryColumn, NumericColumn
from woodlot.data.formats import digest
from woodlot.data.sources import LoadedTable, TableSource
from woodlot.data.spool import Spool
from woodlot.exceptions import ConfigError, DataError

PEOPLE = pa.table(
    {
        "id": [30, 10, 20, 40],
        "age": [61, None, 35, 35],
        "income": [1.5, 2.25, None, -0.0],
        "member": [True, False, None, True],
        "city": ["Rome", None, "Oslo", "Rome"],
    }
)


def write_csv(table: pa.Table, path: Path) -> None:
    pa.csv.write_csv(table, path)


def write_gz(table: pa.Table, path: Path) -> None:
    with gzip.open(path, "wb") as file:
        pa.csv.write_csv(table, file)


def write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=3)


def write_arrow(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def write_stream(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)


def write_feather(table: pa.Table, path: Path) -> None:
    pyarrow.feather.write_feather(table, str(path), compression="zstd", chunksize=3)


WRITERS: dict[str, tuple[str, Callable[[pa.Table, Path], None]]] = {
    "csv": ("people.csv", write_csv),
    "csv.gz": ("people.csv.gz", write_gz),
    "parquet": ("people.parquet", write_parquet),
    "arrow file": ("people.arrow", write_arrow),
    "arrow stream": ("stream.arrow", write_stream),
    "feather": ("people.feather", write_feather),
    "capitals": ("PEOPLE.CSV", write_csv),
}


def source(path: Path | str, **settings: Any) -> TableSource:
    return TableSource("people", **{"id": "id", "path": Path(path), **settings})


def written(folder: Path, text: str | bytes, name: str = "people.csv") -> TableSource:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return source(name, folder=folder)


def types(loaded: LoadedTable) -> dict[str, str]:
    return {field.name: str(field.type) for field in loaded.arrow.schema}


class TestFiles:
    @pytest.mark.parametrize("kind", WRITERS)
    @pytest.mark.parametrize("on_disk", [False, True])
    def test_every_format_gives_the_same_table_and_digest(self, tmp_path: Path, kind: str, on_disk: bool) -> None:
        name, write = WRITERS[kind]
        write(PEOPLE, tmp_path / name)
        spool = Spool(tmp_path)
        loaded = source(name, folder=tmp_path).read(spool if on_disk else None)
        assert loaded.arrow.equals(PEOPLE)
        assert loaded.ids.to_pylist() == [30, 10, 20, 40]
        assert loaded.columns == ("age", "income", "member", "city")
        assert loaded.n_rows == 4
        table = loaded.stored(loaded.columns, np.arange(4), spool) if on_disk else loaded.table()
        assert [path.name for path in tmp_path.iterdir()] == [name]  # what is kept has no name
        assert table.names == loaded.columns
        age, _, _, city = table.columns
        assert isinstance(age, NumericColumn)
        assert isinstance(city, CategoryColumn)
        np.testing.assert_array_equal(age.values, np.float32([61, np.nan, 35, 35]))
        assert city.categories == ("Oslo", "Rome")
        assert city.codes.tolist() == [1, -1, 0, 1]
        # Written down, because alignments on disk refer to it.
        assert loaded.digest == "ed6c6d15039a78e124f7b24785dc409c5e0dfb8b999b8b7e534acfb65fada550"

    @pytest.mark.parametrize("kind", WRITERS)
    def test_only_allowed_columns_are_read_in_the_order_of_the_setting(self, tmp_path: Path, kind: str) -> None:
        name, write = WRITERS[kind]
        write(PEOPLE, tmp_path / name)
        loaded = source(tmp_path / name, columns=("city", "age")).read()
        assert loaded.arrow.equals(PEOPLE.select(["id", "city", "age"]))

    @pytest.mark.parametrize("kind", ["parquet", "arrow file", "feather"])
    def test_categories_and_other_types_of_text_have_the_digest_of_text(self, tmp_path: Path, kind: str) -> None:
        name, write = WRITERS[kind]
        write(PEOPLE, tmp_path / name)
        plain = source(tmp_path / name).read().digest
        for city in (PEOPLE["city"].dictionary_encode(), PEOPLE["city"].cast(pa.large_string())):
            write(PEOPLE.set_column(4, "city", city), tmp_path / name)
            assert source(tmp_path / name).read().digest == plain

    def test_values_are_not_rounded(self, tmp_path: Path) -> None:
        big = 2**53 + 1
        write_parquet(pa.table({"id": [big], "y": [big]}), tmp_path / "a.parquet")
        loaded = source(tmp_path / "a.parquet").read()
        assert loaded.ids.to_pylist() == loaded.values("y").tolist() == [big]
        with pytest.raises(DataError, match="no column 'z'"):
            loaded.values("z")

    def test_a_column_whose_name_begins_another_one_is_read_alone(self, tmp_path: Path) -> None:
        write_parquet(pa.table({"id": [1], "a": [2], "a.b": [3]}), tmp_path / "a.parquet")
        assert source(tmp_path / "a.parquet", columns=("a",)).read().columns == ("a",)

    def test_repr_shows_no_value(self, tmp_path: Path) -> None:
        write_csv(PEOPLE, tmp_path / "people.csv")
        assert repr(source(tmp_path / "people.csv").read()) == "LoadedTable('people', 4 rows, 4 columns)"


class TestCsv:
    def test_types_come_from_all_rows(self, tmp_path: Path) -> None:
        n = 300_000  # several of Arrow's blocks; the last row decides
        rows = "".join(f"{i},7,7,7,true,2020-01-01\n" for i in range(n))
        loaded = written(tmp_path, f"id,whole,broken,text,flag,day\n{rows}x,8,8.5,none,1,-\n").read()
        expected = {"id": "string", "whole": "int64", "broken": "double", "text": "string"}
        assert types(loaded) == expected | {"flag": "string", "day": "string"}
        assert loaded.arrow["broken"][n].as_py() == 8.5
        assert loaded.n_rows == n + 1

    def test_empty_cells_are_missing_and_other_words_for_it_only_among_numbers(self, tmp_path: Path) -> None:
        loaded = written(tmp_path, 'id,n,t\n1,,\n2,"",""\n3,NA,NA\n4,nan,null\n5, 7 ,x\n').read()
        assert loaded.arrow["n"].to_pylist() == [None, None, None, None, 7]
        assert loaded.arrow["t"].to_pylist() == [None, None, "NA", "null", "x"]

    @pytest.mark.parametrize(
        ("cells", "ids"),
        [
            (["7", "10"], [7, 10]),
            (["007", "10"], ["007", "10"]),
            (["7", "0x1F"], ["7", "0x1F"]),
            (["1.0", "2"], ["1.0", "2"]),
            (["7", "NA"], ["7", "NA"]),
            (["2020-01-01", "2020-01-02"], ["2020-01-01", "2020-01-02"]),
            (["7", ""], [7, None]),
            ([" 7", "8"], [" 7", "8"]),
            ([str(2**63), "1"], [str(2**63), "1"]),
        ],
    )
    def test_ids_are_numbers_only_if_written_as_numbers_are(
        self, tmp_path: Path, cells: list[str], ids: list[Any]
    ) -> None:
        loaded = written(tmp_path, "a,id\n" + "".join(f"1,{cell}\n" for cell in cells)).read()
        assert loaded.ids.to_pylist() == ids

    def test_text_of_many_lines_and_quotes(self, tmp_path: Path) -> None:
        loaded = written(tmp_path, '\ufeffid,t\n1,"a\nb, ""c"""\n2,é\n').read()
        assert loaded.arrow["t"].to_pylist() == ['a\nb, "c"', "é"]

    def test_a_column_without_values_is_a_number(self, tmp_path: Path) -> None:
        (column,) = written(tmp_path, "id,a\n1,\n2,\n").read().table().columns
        assert isinstance(column, NumericColumn)
        assert np.isnan(column.values).all()

    @pytest.mark.parametrize("cell", ["2020-01-31", "2020-01-31 12:00:00", "2020-01-31T12:00:00Z"])
    def test_dates_are_refused_when_read(self, tmp_path: Path, cell: str) -> None:
        with pytest.raises(DataError, match=r"'since' of table 'people' .*people\.csv.* dates or times"):
            written(tmp_path, f"id,since\n1,{cell}\n2,\n").read()

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("id,a\n1,Oslo\n2,Oslo,5\n", "row 3 has 3 cells instead of 2"),
            ("id,a\n1,Oslo\n2\n", "row 3 has 1 cells instead of 2"),
            (b"id,a\n1,Oslo\n2,\xff\n", "not UTF-8"),
            ("id,a\n1,Oslo\n2,b\n".encode("utf-16"), "damaged or is no CSV file|has no column"),
            ("\n\n", "has no header"),
            ('id,a\n1,"Oslo\n', "a quote is never closed"),
        ],
    )
    def test_damaged_text_is_refused_without_quoting_it(self, tmp_path: Path, content: str | bytes, words: str) -> None:
        with pytest.raises(DataError, match=words) as caught:
            written(tmp_path, content).read()
        assert "people.csv" in str(caught.value)
        assert "Oslo" not in "".join(traceback.format_exception(caught.value))

    @pytest.mark.parametrize("name", ["a\0b", "a\0"])
    def test_a_name_with_what_is_no_character_is_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(DataError, match="whose name is not valid Unicode; rename it"):
            written(tmp_path, f"id,a,{name}\n1,2,3\n").read()

    @pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks up open files as Linux shows them")
    def test_no_file_stays_open(self, tmp_path: Path) -> None:
        for content in ("id,a\n1,2\n", "id,a\n1,2,3\n", 'id,a\n1,"2\n'):
            with contextlib.suppress(DataError):
                written(tmp_path, content).read()

        def is_open() -> bool:
            links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
            return any(os.path.realpath(link).startswith(str(tmp_path)) for link in links)

        until = time.monotonic() + 300
        while is_open():  # Arrow's threads, which read ahead, may need another moment
            assert time.monotonic() < until
            time.sleep(0.01)

    def test_a_fault_far_down_in_the_file_is_found(self, tmp_path: Path) -> None:
        rows = "".join(f"{i},1\n" for i in range(300_000))
        with pytest.raises(DataError, match="row 300002 has 3 cells instead of 2"):
            written(tmp_path, f"id,a\n{rows}1,2,3\n").read()

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("id;a\n1;2\n", "separated by commas, not by ';'"),
            ("17,London\n18,Oslo\n", "is the first line of the file the names"),
            ("Id,a\n1,2\n", "did you mean 'Id'"),
            ("name,a\n1,2\n", "it has 'name', 'a'"),
        ],
    )
    def test_where_the_id_column_is_missing_a_hint_is_given(self, tmp_path: Path, content: str, words: str) -> None:
        with pytest.raises(DataError, match=r"no column 'id', which the setting id names") as caught:
            written(tmp_path, content).read()
        assert words in str(caught.value)
        assert "London" not in str(caught.value)


class TestRefusedFiles:
    def refusal(self, table: TableSource) -> str:
        with pytest.raises(DataError) as caught:
            table.read()
        words = str(caught.value)
        assert words.startswith("table 'people' (") or "table 'people' (" in words
        assert str(table.path) in words
        return words

    def test_missing_file_and_folder(self, tmp_path: Path) -> None:
        assert "is not there; correct the setting path" in self.refusal(source(tmp_path / "none.csv"))
        (tmp_path / "folder.csv").mkdir()
        assert "is not a file" in self.refusal(source(tmp_path / "folder.csv"))

    @pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.arrow", "a.feather", "a.csv.gz"])
    def test_empty_file(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).touch()
        assert "is empty" in self.refusal(source(tmp_path / name))

    @pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind != "csv"])
    def test_half_a_file(self, tmp_path: Path, kind: str) -> None:
        name, write = WRITERS[kind]
        path = tmp_path / name
        write(pa.concat_tables([PEOPLE] * 50), path)
        whole = path.read_bytes()
        if kind == "capitals":  # half a line of text is still text, but not a row
            whole = whole.rstrip()[:-12] + whole.rstrip()[:-12]
        path.write_bytes(whole[: len(whole) // 2])
        assert "write" in self.refusal(source(path))

    @pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather", "a.csv.gz"])
    def test_a_file_of_another_kind(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_text("id,a\n1,2\n" * 100)
        assert "is damaged or is no" in self.refusal(source(tmp_path / name))

    @settings(max_examples=60, deadline=None)
    @given(data=st.data(), kind=st.sampled_from(["arrow file", "arrow stream", "parquet"]))
    def test_damaged_bytes_give_an_error_or_a_table_but_never_a_crash(self, data: st.DataObject, kind: str) -> None:
        name, write = WRITERS[kind]
        with TemporaryDirectory() as folder:
            path = Path(folder, name)
            write(PEOPLE, path)
            whole = bytearray(path.read_bytes())
            for _ in range(3):
                whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
            path.write_bytes(whole)
            with contextlib.suppress(DataError):
                assert len(source(path).read().digest) == 64

    @pytest.mark.parametrize("kind", WRITERS)
    def test_no_rows(self, tmp_path: Path, kind: str) -> None:
        name, write = WRITERS[kind]
        write(PEOPLE.slice(0, 0), tmp_path / name)
        assert "has no rows" in self.refusal(source(tmp_path / name))

    @pytest.mark.parametrize("kind", WRITERS)
    def test_unknown_and_repeated_columns(self, tmp_path: Path, kind: str) -> None:
        name, write = WRITERS[kind]
        write(PEOPLE, tmp_path / name)
        words = self.refusal(source(tmp_path / name, columns=("age", "incom")))
        assert "no column 'incom', which the setting columns names; did you mean 'income'?" in words
        assert "which the setting id names" in self.refusal(source(tmp_path / name, id="customer"))
        write(PEOPLE.append_column("age", PEOPLE["age"]), tmp_path / name)
        assert "'age' more than once" in self.refusal(source(tmp_path / name))

    def test_nothing_but_ids(self, tmp_path: Path) -> None:
        write_csv(PEOPLE.select(["id"]), tmp_path / "a.csv")
        assert "no column besides the id" in self.refusal(source(tmp_path / "a.csv"))

    @pytest.mark.parametrize(
        ("column", "words"),
        [
            (pa.array([b"x"]), "binary"),
            (pa.array([[1]]), "list"),
            (pa.array([{"a": 1}]), "struct"),
            (pa.array([0], pa.date32()), "dates or times"),
            (pa.array([0], pa.duration("s")), "dates or times"),
        ],
    )
    def test_types_that_no_tree_can_use(self, tmp_path: Path, column: pa.Array, words: str) -> None:
        write_parquet(pa.table({"id": [1], "a": column}), tmp_path / "a.parquet")
        assert words in self.refusal(source(tmp_path / "a.parquet"))
        write_parquet(pa.table({"id": column, "a": [1]}), tmp_path / "a.parquet")
        assert "ids must be whole numbers or text" in self.refusal(source(tmp_path / "a.parquet"))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_file_that_may_not_be_read(self, tmp_path: Path) -> None:
        write_csv(PEOPLE, tmp_path / "a.csv")
        (tmp_path / "a.csv").chmod(0)
        assert "may not be read by this user" in self.refusal(source(tmp_path / "a.csv"))


# Values that CSV keeps exactly: its floats are written in full, its text is never empty.
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0).filter(lambda x: x != int(x)),
    "bool": st.booleans(),
    "text": st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1).map("t {}".format),
}


@pytest.mark.parametrize("write", [write_csv, write_parquet, write_arrow], ids=["csv", "parquet", "arrow"])
def test_an_empty_list_of_columns_offers_ids_alone(tmp_path: Path, write: Callable[[pa.Table, Path], None]) -> None:
    """For a party that is the second server of hidden trainings and has nothing to learn from."""
    path = tmp_path / ("people" + {"write_csv": ".csv", "write_parquet": ".parquet"}.get(write.__name__, ".arrow"))
    write(pa.table({"id": [3, 1, 2], "age": [30.0, 10.0, 20.0]}), path)
    bare = source(path, columns=())
    assert (bare.inspect().n_rows, bare.inspect().columns) == (3, ())
    loaded = bare.read()
    assert (loaded.n_rows, loaded.features, loaded.ids.to_pylist()) == (3, (), [3, 1, 2])
    rows = np.array([2, 0])
    table = loaded.table().select([]).take_or_missing(rows)
    assert (table.n_rows, table.names) == (2, ())
    spool = Spool(tmp_path)
    assert bare.read(spool).stored([], rows, spool).n_rows == 2


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    n = draw(st.integers(1, 12))
    kinds = draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=4))
    columns = {"id": draw(st.lists(st.integers(0, 10**6), min_size=n, max_size=n, unique=True))}
    for at, kind in enumerate(kinds):
        # The first cell is there, so that a CSV file shows the type.
        cells = st.one_of(st.none(), CELLS[kind])
        columns[f"{kind}{at}"] = [draw(CELLS[kind]), *draw(st.lists(cells, min_size=n - 1, max_size=n - 1))]
    return pa.table(columns)


def rechunked(table: pa.Table, cuts: list[int]) -> pa.Table:
    edges = [0, *sorted(cut % (table.num_rows + 1) for cut in cuts), table.num_rows]
    return pa.concat_tables([table.slice(a, b - a) for a, b in itertools.pairwise(edges)])


def plain_digest(table: pa.Table) -> str:
    """The digest of a small table, written as plainly as can be."""
    names = {pa.int64(): "int64", pa.float64(): "double", pa.bool_(): "bool", pa.string(): "text"}
    schema = [[field.name, names[field.type]] for field in table.schema]
    data = b"woodlot table 1\n" + json.dumps([schema, table.num_rows], separators=(",", ":")).encode() + b"\n"
    for field in table.schema:
        values = table[field.name].to_pylist()
        bits = "".join("0" if value is None else "1" for value in values)
        data += bytes(int(bits[i : i + 8].ljust(8, "0"), 2) for i in range(0, len(bits), 8))
        if field.type == pa.string():
            texts = [(value or "").encode() for value in values]
            data += b"".join(struct.pack("<q", len(text)) for text in texts) + b"".join(texts)
        else:
            form = {pa.int64(): "<q", pa.float64(): "<d", pa.bool_(): "<?"}[field.type]
            data += b"".join(struct.pack(form, 0 if value is None else value) for value in values)
    return hashlib.sha256(data).hexdigest()


class TestDigest:
    @settings(max_examples=60, deadline=None)
    @given(tables())
    def test_it_is_what_the_plain_way_gives(self, table: pa.Table) -> None:
        assert digest(table) == plain_digest(table)

    @settings(max_examples=40, deadline=None)
    @given(tables(), st.lists(st.integers(0, 12), max_size=4))
    def test_format_and_chunks_do_not_matter(self, table: pa.Table, cuts: list[int]) -> None:
        with TemporaryDirectory() as folder:
            found = {}
            for kind, (name, write) in WRITERS.items():
                write(rechunked(table, cuts), Path(folder, name))
                loaded = source(Path(folder, name)).read()
                assert loaded.arrow.equals(table), kind
                found[kind] = loaded.digest
        assert set(found.values()) == {digest(table)}

    @settings(max_examples=50, deadline=None)
    @given(st.data(), tables())
    def test_any_changed_value_gives_another_digest(self, data: st.DataObject, table: pa.Table) -> None:
        name = data.draw(st.sampled_from(table.column_names))
        row = data.draw(st.integers(0, table.num_rows - 1))
        kind = "int" if name == "id" else name.rstrip("0123456789")
        values = table[name].to_pylist()
        new = data.draw(st.one_of(st.none(), CELLS[kind]).filter(lambda value: value != values[row]))
        values[row] = new
        changed = table.set_column(table.column_names.index(name), name, pa.array(values, table[name].type))
        assert digest(changed) != digest(table)

    @settings(max_examples=60, deadline=None)
    @given(st.data(), tables())
    def test_other_rows_names_or_types_give_another_digest(self, data: st.DataObject, table: pa.Table) -> None:
        others = [
            pa.concat_tables([table, table.slice(0, 1)]),
            table.slice(0, table.num_rows - 1),
            table.rename_columns([*table.column_names[:-1], "other"]),
            table.set_column(0, "id", table["id"].cast(pa.int32())),
            table.set_column(0, "id", table["id"].cast(pa.string())),
            table.append_column("more", table["id"]),
        ]
        if table.num_rows > 1:
            others.append(table.take([*range(1, table.num_rows), 0]))
        digests = {digest(other) for other in others}
        assert digest(table) not in digests
        assert len(digests) == len(others)

    def test_cells_cannot_move_into_their_neighbours(self) -> None:
        ways = (["ab", "c"], ["a", "bc"], ["abc", ""], ["abc", None], [None, "abc"])
        assert len({digest(pa.table({"a": way})) for way in ways}) == len(ways)

    def test_what_lies_under_a_missing_value_does_not_matter(self) -> None:
        mask = pa.array([False, True])
        tables = []
        for hidden in (1, 2):
            bits = pa.array([True, False])
            column = pa.Array.from_buffers(pa.int64(), 2, [bits.buffers()[1], pa.array([7, hidden]).buffers()[1]])
            assert column.is_null().equals(mask)
            tables.append(pa.table({"a": column}))
        assert digest(tables[0]) == digest(tables[1])
        assert digest(tables[0]) != digest(pa.table({"a": [7, 0]}))

    def test_more_rows_than_are_hashed_at_once(self) -> None:
        n = 200_001
        table = pa.table({"a": np.arange(n), "t": pc.cast(pa.array(np.arange(n)), pa.string())})
        assert digest(rechunked(table, [65_535, 65_537, 131_072])) == digest(table)
        for at in (0, 65_536, n - 1):
            values = np.arange(n)
            values[at] = -1
            assert digest(table.set_column(0, "a", pa.array(values))) != digest(table)

    @pytest.mark.parametrize("kind", [pa.decimal128(20, 3), pa.float32(), pa.uint8(), pa.string_view(), pa.null()])
    def test_every_type_that_may_come_has_a_digest(self, kind: pa.DataType) -> None:
        table = pa.table({"a": pa.array([None, None], kind)})
        assert digest(table) == digest(rechunked(table, [1]))
        if kind != pa.null():
            value = "7" if kind == pa.string_view() else 7
            assert digest(
                pa.table({"a": pa.array([value, None], None if value == "7" else kind).cast(kind)})
            ) != digest(table)


class TestSettings:
    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({}, "needs either path"),
            ({"path": Path("a.csv"), "sql": "SELECT 1", "url": "sqlite://"}, "needs either path"),
            ({"sql": "SELECT 1"}, "sql without url"),
            ({"path": Path("a.csv"), "url": "sqlite://"}, "mean nothing"),
            ({"path": Path("a.csv"), "password_env": "X"}, "mean nothing"),
            ({"path": Path("a.csv"), "password_file": Path("x")}, "mean nothing"),
            ({"path": Path("a.xlsx")}, r"unknown kind, 'a.xlsx'; it must end in .csv, .csv.gz, .parquet"),
            ({"path": Path("a.csv"), "id": ""}, "empty id"),
            ({"path": Path("a.csv"), "columns": ("a", "id")}, "its id 'id' among its columns"),
            ({"path": Path("a.csv"), "columns": ("a", "b", "a")}, "'a' more than once"),
            (
                {"sql": "SELECT 1", "url": "sqlite://", "password_env": "X", "password_file": Path("x")},
                "both password_env and password_file",
            ),
        ],
    )
    def test_what_does_not_go_together_is_refused(self, fields: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=f"table 'people' .*{words}"):
            TableSource("people", **{"id": "id", **fields})
