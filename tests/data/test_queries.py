"""A party's tables from databases, and the passwords of these."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from sqlalchemy import exc
from sqlalchemy.dialects import registry, sqlite

from woodlot.data.formats import rows_to_table
from woodlot.data.sources import TableSource, read_private
from woodlot.data.spool import Spool
from woodlot.exceptions import ConfigError, DataError

SECRET = "S3cr+t/p@ss"  # noqa: S105


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE people (id INTEGER, age INTEGER, income REAL, city TEXT, mixed)")
        db.executemany(
            "INSERT INTO people VALUES (?, ?, ?, ?, ?)",
            [(30, 61, 1.5, "Rome", 1), (10, None, 2.25, None, "a"), (20, 35, None, "Oslo", None)],
        )
    return path


def query(sql: str, **settings: Any) -> TableSource:
    return TableSource("people", **{"id": "id", "sql": sql, **settings})


class TestQueries:
    def test_a_query_is_a_table_sorted_by_id(self, database: Path) -> None:
        url = f"sqlite:///{database}"
        expected = pa.table(
            {"id": [10, 20, 30], "age": [None, 35, 61], "income": [2.25, None, 1.5], "city": [None, "Oslo", "Rome"]}
        )
        loaded = query("SELECT city, age, id, income FROM people", url=url, columns=("age", "income", "city")).read()
        assert loaded.arrow.equals(expected)
        again = query("SELECT * FROM people ORDER BY age", url=url, columns=("age", "income", "city")).read()
        assert again.digest == loaded.digest
        stored = query("SELECT * FROM people", url=url, columns=("age", "income", "city")).read(Spool(database.parent))
        assert stored.arrow.equals(expected)
        assert stored.digest == loaded.digest
        pq.write_table(expected, database.with_name("a.parquet"))
        assert TableSource("people", id="id", path=database.with_name("a.parquet")).read().digest == loaded.digest
        assert query("SELECT id, age FROM people", url=url).read().columns == ("age",)

    def test_a_relative_database_is_beside_the_configuration(self, database: Path) -> None:
        table = query("SELECT id, age FROM people", url="sqlite:///shop.db", folder=database.parent)
        assert table.read().n_rows == 3
        missing = replace(table, url="sqlite:///none.db")
        with pytest.raises(DataError, match=r"database that is not there, .*none\.db"):
            missing.read()
        assert not database.with_name("none.db").exists()

    @pytest.mark.parametrize(
        ("sql", "words"),
        [
            ("SELEC id FROM people", "syntax error"),
            ("SELECT id, height FROM people", "no such column"),
            ("SELECT id, age FROM nobody", "no such table"),
            ("SELECT id, age FROM people WHERE id < 0", "has no rows"),
            ("SELECT age FROM people", "no column 'id'"),
            ("SELECT id, age, income AS age FROM people", "'age' more than once"),
            ("SELECT id FROM people", "nothing to learn from"),
            ("SELECT id, mixed FROM people", r"'mixed' of table 'people'.*mixes values"),
            ("SELECT id, x'00' AS raw FROM people", "has the type binary"),
            ("DELETE FROM people", "must be a SELECT"),
        ],
    )
    def test_queries_that_give_no_table_are_refused_and_change_nothing(
        self, database: Path, sql: str, words: str
    ) -> None:
        with pytest.raises(DataError, match=words) as caught:
            query(sql, url=f"sqlite:///{database}").read()
        assert f"(query: {sql})" in str(caught.value)
        assert "Rome" not in str(caught.value)
        with contextlib.closing(sqlite3.connect(database)) as db:
            assert db.execute("SELECT count(*) FROM people").fetchone() == (3,)

    def test_types_do_not_depend_on_where_a_part_of_the_rows_begins(self) -> None:
        rows = [
            (1, None, 1, Decimal("1"), Decimal("10"), None),
            (2, "a", 2, Decimal("2"), Decimal("0.5"), None),
            (3, "b", 2.5, Decimal("3000"), None, None),
        ]
        names = ["id", "t", "n", "whole", "decimal", "none"]
        whole, *parts = (
            rows_to_table(iter([rows[i : i + n] for i in range(0, 3, n)]), names, names, "X") for n in (3, 2, 1)
        )
        assert [part.equals(whole) for part in parts] == [True, True]
        assert [str(field.type) for field in whole.schema] == [
            "int64", "string", "double", "decimal128(38, 0)", "double", "double",
        ]  # fmt: skip
        with pytest.raises(DataError, match="'t' of X mixes values of different types"):
            rows_to_table(iter([[(1,)], [("a",)]]), ["t"], ["t"], "X")
        with pytest.raises(DataError, match="'t' of X mixes values of different types"):
            rows_to_table(iter([[(1,), ("a",)]]), ["t"], ["t"], "X")

    def test_without_sqlalchemy_the_extra_is_named(self, database: Path) -> None:
        script = (
            "import sys; sys.modules['sqlalchemy'] = None\n"
            "from woodlot.data.sources import TableSource\n"
            f"TableSource('t', id='id', sql='SELECT 1', url='sqlite:///{database}').read()\n"
        )
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        told = ended.stderr.splitlines()[-1]
        assert told.startswith("woodlot.exceptions.MissingExtraError: ")
        assert "pip install 'woodlot[sql]'" in told


class TestPasswords:
    """Whatever goes wrong, the password is nowhere to be seen."""

    @pytest.fixture(params=["environment", "file"])
    def where(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        if request.param == "environment":
            monkeypatch.setenv("SHOP_PASSWORD", SECRET)
            return {"password_env": "SHOP_PASSWORD"}
        path = tmp_path / "password"
        path.touch(mode=0o600)
        path.write_text(SECRET + "\n")
        return {"password_file": Path("password"), "folder": tmp_path}

    @pytest.fixture
    def server(self) -> Iterator[Any]:
        """A database whose driver tells everything it knows, as some do."""

        class Talkative(sqlite.dialect):  # type: ignore[misc]
            failure: Callable[[str], Exception] = RuntimeError

            def create_connect_args(self, url: Any) -> Any:
                raise type(self).failure(f"{url.render_as_string(hide_password=False)} and {url.password}")

        registry.impls["talkative"] = lambda: Talkative
        yield Talkative
        del registry.impls["talkative"]

    @pytest.mark.parametrize(
        "failure",
        [
            RuntimeError,
            lambda words: exc.OperationalError(words, {}, Exception(words)),
            exc.ArgumentError,
            lambda words: ImportError(words, name="driver"),
        ],
    )
    def test_an_error_of_the_driver_is_told_without_it(
        self, server: Any, where: dict[str, Any], failure: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.failure = staticmethod(failure)
        table = query("SELECT 1", url="talkative://alice@db.example/shop", **where)
        with pytest.raises(DataError, match="cannot be read") as caught:
            table.read()
        seen = "".join(traceback.format_exception(caught.value)) + repr(table) + str(table) + caplog.text
        for form in (SECRET, "S3cr%2Bt%2Fp%40ss", "S3cr+t", "p@ss"):
            assert form not in seen
        assert caught.value.__context__ is None
        if isinstance(failure(""), exc.OperationalError):
            assert "alice:***@db.example" in str(caught.value)

    def test_it_reaches_the_driver(self, server: Any, where: dict[str, Any]) -> None:
        told: list[str] = []
        server.failure = staticmethod(lambda words: told.append(words) or RuntimeError())
        with pytest.raises(DataError):
            query("SELECT 1", url="talkative://alice@db.example/shop", **where).read()
        assert told[0].endswith(f" and {SECRET}")

    def test_a_long_error_is_scrubbed_before_it_is_cut(self, server: Any, where: dict[str, Any]) -> None:
        server.failure = staticmethod(lambda words: exc.OperationalError("", {}, Exception("x" * 295 + SECRET)))
        with pytest.raises(DataError) as caught:
            query("SELECT 1", url="talkative://alice@db.example/shop", **where).read()
        assert "x" * 295 + "***" in str(caught.value)

    @pytest.mark.parametrize("url", ["nonsense", "nowhere://a@b/c", "postgresql+nodriver://a@b/c"])
    def test_urls_that_lead_nowhere(self, where: dict[str, Any], url: str) -> None:
        with pytest.raises(DataError, match="SQLAlchemy does not"):
            query("SELECT 1", url=url, **where).read()

    def test_a_driver_that_is_not_installed_is_named(self, where: dict[str, Any]) -> None:
        with pytest.raises(DataError, match=r"driver is not installed \(oracledb\)"):
            query("SELECT 1", url="oracle+oracledb://a@b/c", **where).read()

    def test_a_variable_that_is_not_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SHOP_PASSWORD", raising=False)
        with pytest.raises(DataError, match="environment variable SHOP_PASSWORD; set it"):
            query("SELECT 1", url="sqlite://", password_env="SHOP_PASSWORD").read()  # noqa: S106

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
    def test_a_file_that_others_may_open_is_refused(self, tmp_path: Path, mode: int) -> None:
        path = tmp_path / "password"
        path.write_text(SECRET)
        path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600") as caught:
            read_private(path, "the password")
        assert SECRET not in str(caught.value)
        path.chmod(0o400)
        assert read_private(path, "the password") == SECRET.encode()

    def test_a_file_that_is_empty_or_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"the password cannot be read from .*none: No such file"):
            read_private(tmp_path / "none", "the password")
        with pytest.raises(ConfigError, match="the password cannot be read from"):
            read_private(tmp_path, "the password")
        (tmp_path / "empty").touch(mode=0o600)
        (tmp_path / "empty").write_text("\r\n")
        with pytest.raises(ConfigError, match="is empty"):
            read_private(tmp_path / "empty", "the password")

    @pytest.mark.parametrize(
        "url",
        [
            f"postgresql://alice:{SECRET}@db/shop",
            "postgresql+psycopg://:hidden@db/shop",
            "mysql://alice:hid/den@db/shop",
            "postgresql://alice@db/shop?password=hidden",
            "postgresql://alice@db/shop?application_name=x&sslpassword=hidden",
            "mssql+pyodbc://?odbc_connect=DRIVER%3D%7BX%7D%3BPWD%3Dhidden",
        ],
    )
    def test_a_url_with_a_password_is_refused_unseen(self, url: str) -> None:
        with pytest.raises(ConfigError, match="has a password in url; take it out") as caught:
            query("SELECT 1", url=url)
        assert "hid" not in str(caught.value)
        assert SECRET not in str(caught.value)
