"""The tables of a party as its configuration names them: files and SQL queries, read when a job needs them.

Errors from here name columns, files and queries: they are for the party's own eyes. None of them quotes a cell.
Nothing heavy is imported before a table is read, so that a command line can check a configuration at once.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from woodlot.data.extras import need
from woodlot.data.wording import nearest, quoted
from woodlot.exceptions import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from woodlot.data.columns import Column
    from woodlot.data.spool import Spool
    from woodlot.data.tables import Table

T = TypeVar("T")

FILE_KINDS = {".csv": "CSV", ".csv.gz": "CSV", ".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Arrow"}
"""How the file of a table may end, and what is then expected in it."""

ROLES = ("labels", "weights", "features")
"""The settings that say what columns may be used as."""

Stamp: TypeAlias = tuple[int, int, int, int, int]
"""Device, inode, size, and times of the last change of a file."""

# Where SQLAlchemy looks for a password, and the options of drivers that may hold one.
_PASSWORD_IN_URL = re.compile(
    r"^[\w+]+://[^:/]*:[^@]*@|[?&].*(password|passwd|pwd|secret|token)[^=&]*(=|%3d)", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True)
class TableSource:
    """Where a party's table is, and what of it may be used.

    Attributes
    ----------
    name : str
        What jobs call the table.
    id : str
        Column that identifies a row. It is never a feature.
    columns : tuple of str or None
        The columns that jobs may use; None: all of them. None at all: for a party that serves and has nothing to learn
        from.
    labels, weights : tuple of str or None
        Those of them that may be a label, or a weight. None: any may, for tables that one owner uses in one process. A
        configuration file always names them: see `may_label`.
    features : tuple of str or None
        Those of them that may be learnt from; None: all that are neither labels nor weights.
    path : Path, optional
        A file that ends as in `FILE_KINDS`.
    sql, url : str, optional
        A query, and where to send it: a URL as SQLAlchemy has them, without a password.
    password_env, password_file : str or Path, optional
        Environment variable or owner-only file that holds the password of the URL. It is read when the table is.
    folder : Path
        What relative paths are relative to.

    """

    name: str
    id: str
    columns: tuple[str, ...] | None = field(default=None, repr=False)
    labels: tuple[str, ...] | None = field(default=None, repr=False)
    weights: tuple[str, ...] | None = field(default=None, repr=False)
    features: tuple[str, ...] | None = field(default=None, repr=False)
    path: Path | None = None
    sql: str | None = None
    url: str | None = field(default=None, repr=False)
    password_env: str | None = None
    password_file: Path | None = None
    folder: Path = Path()

    def __post_init__(self) -> None:
        if (self.path is None) == (self.sql is None):
            self._refuse("needs either path (a file) or sql with url (a query)")
        if self.path is None:
            self._check_query()
        elif self.url is not None or self.password_env is not None or self.password_file is not None:
            self._refuse("has path, so url, password_env and password_file mean nothing; take them out")
        elif _ending(self.path) is None:
            self._refuse(f"has a file of an unknown kind, {self.path.name!r}; it must end in {', '.join(FILE_KINDS)}")
        if not self.id:
            self._refuse("has an empty id; name the column that identifies a row")
        if self.columns is not None:
            self._check_columns(self.columns)
        for setting in ROLES:
            self._check_role(setting, getattr(self, setting))

    def _check_query(self) -> None:
        if self.url is None:
            self._refuse("has sql without url; add the database, such as url = 'postgresql+psycopg://user@host/db'")
        if _PASSWORD_IN_URL.search(self.url):
            self._refuse("has a password in url; take it out and name where it is with password_env or password_file")
        if self.password_env is not None and self.password_file is not None:
            self._refuse("has both password_env and password_file; keep one")

    def _check_columns(self, columns: tuple[str, ...]) -> None:
        if self.id in columns:
            self._refuse(f"has its id {self.id!r} among its columns; ids are never learnt from: take it out")
        if repeated := _repeated(columns):
            self._refuse(f"has {quoted(repeated)} more than once among its columns; keep one of each")

    def _check_role(self, setting: str, names: tuple[str, ...] | None) -> None:
        if names is None:
            return
        if setting == "features" and not names:
            self._refuse("has an empty list of features; name the columns to learn from, or take the setting out")
        if self.id in names:
            self._refuse(f"has its id {self.id!r} among its {setting}; ids are used to find rows only: take it out")
        if repeated := _repeated(names):
            self._refuse(f"has {quoted(repeated)} more than once among its {setting}; keep one of each")
        for name in names:
            if self.columns is not None and name not in self.columns:
                self._refuse(f"has {name!r} among its {setting} but not among its columns; add it to columns")

    def may_label(self, column: str) -> bool:
        """Whether the owner of the table has named a column as a label."""
        return self.labels is None or column in self.labels

    def may_weigh(self, column: str) -> bool:
        """Whether the owner of the table has named a column as a weight."""
        return self.weights is None or column in self.weights

    def part(self, columns: Sequence[str]) -> TableSource:
        """The same table with some of its columns only, for a worker; what they are used as has been checked."""
        return replace(self, columns=tuple(columns), labels=None, weights=None, features=None)

    def _refuse(self, problem: str) -> NoReturn:
        raise ConfigError(f"table {self.name!r} {problem}")

    def __str__(self) -> str:
        if self.path is not None:
            return f"table {self.name!r} ({self.folder / self.path})"
        words = " ".join((self.sql or "").split())
        return f"table {self.name!r} (query: {words if len(words) <= 80 else words[:77] + '...'})"

    def read(self, spool: Spool | None = None) -> LoadedTable:
        """Read the id column and the allowed columns.

        Parameters
        ----------
        spool : Spool, optional
            Where to keep a table that may be larger than memory; by default it is read into memory.

        Returns
        -------
        LoadedTable
            Rows in the order of the file. The rows of a query have no order of their own and are sorted by id.

        Raises
        ------
        DataError
            The table is not there, damaged, empty or not what the configuration says. The message names the file or
            query, and holds neither cells nor the password.
        ConfigError
            The file of the password cannot be used.

        """
        from woodlot.data.formats import digest, sort_rows

        stamp = self.stamp()  # before it is read: what is written meanwhile is found later
        arrow = self._read_rows(spool)
        if arrow.num_rows == 0:
            raise DataError(f"{self} has no rows; a table needs at least one")
        self._check_types(arrow.schema)
        if self.sql is not None:
            arrow = sort_rows(arrow, self.id, spool)
        loaded = LoadedTable(self.name, self.id, arrow, digest(arrow), stamp, self._learnt(arrow.column_names))
        if spool is not None:
            spool.let_go()
        return loaded

    def inspect(self) -> TableFacts:
        """Check that the table can be read and is what the configuration says, and keep nothing of it.

        Of Parquet and Arrow files the metadata and the id column are read, of CSV files and queries everything, part by
        part.

        Raises
        ------
        DataError, ConfigError
            As for `read`, and where ids are missing or occur more than once.

        """
        from woodlot.data.formats import peek_arrow, peek_csv, peek_parquet, peek_rows
        from woodlot.data.ids import check_ids

        if self.path is None:
            schema, ids = self._of_query(
                lambda parts, names: peek_rows(parts, names, self._used(names), str(self), self.id)
            )
        else:
            path = self.folder / self.path
            schema, ids = self._of_file(
                path,
                {
                    "CSV": lambda: peek_csv(path, self._used, self.id, self._check_types),
                    "Parquet": lambda: peek_parquet(path, self._used, self.id),
                    "Arrow": lambda: peek_arrow(path, self._used, self.id),
                },
                "and give the process that much",
            )
        if len(ids) == 0:
            raise DataError(f"{self} has no rows; a table needs at least one")
        self._check_types(schema)
        kind = check_ids(ids, f"{self}: the id column {self.id!r}")
        return TableFacts(len(ids), kind, tuple(schema.names[1:]), self._learnt(schema.names))

    def stamp(self) -> Stamp | None:
        """What changes when the file is written again; None of a query, and of a file that is not there."""
        if self.path is None:
            return None
        try:
            found = (self.folder / self.path).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _used(self, names: Sequence[str]) -> list[str]:
        """The columns to read, id first, out of those that there are."""
        from woodlot.data.columns import check_names

        check_names(names, str(self))
        if repeated := _repeated(names):
            raise DataError(f"{self} has {quoted(repeated)} more than once; rename or drop all but one of each")
        for setting, name in [("id", self.id), *self._named()]:
            if name not in names:
                raise DataError(
                    f"{self} has no column {name!r}, which the setting {setting} names; {_hint(name, names)}"
                )
        allowed = [name for name in names if name != self.id] if self.columns is None else self.columns
        if not allowed and self.columns is None:  # an empty list is the owner's own word
            raise DataError(
                f"{self} has no column besides the id {self.id!r}: there is nothing to learn from; add one. For a "
                "party that is to be the second server of hidden trainings and nothing else, write columns = []"
            )
        return [self.id, *allowed]

    def _named(self) -> list[tuple[str, str]]:
        """Each setting and the columns that it names."""
        return [(setting, name) for setting in ("columns", *ROLES) for name in getattr(self, setting) or ()]

    def _learnt(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the columns that may be learnt from, in their order."""
        if self.features is not None:
            return tuple(name for name in names if name in self.features)
        others = {self.id, *(self.labels or ()), *(self.weights or ())}
        return tuple(name for name in names if name not in others)

    def _check_types(self, schema: Any) -> None:
        """Refuse now what no forest could use later."""
        from pyarrow import types

        from woodlot.data.columns import time_value, unusable_type
        from woodlot.data.formats import is_text

        for column in schema:
            kind = column.type.value_type if types.is_dictionary(column.type) else column.type
            usable = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or is_text(kind)
            if usable or types.is_null(kind):
                continue
            if column.name == self.id:
                raise DataError(
                    f"{self}: ids must be whole numbers or text, but column {self.id!r} has the type {kind}; "
                    "convert it, for instance to text"
                )
            if types.is_temporal(kind):
                raise time_value(column.name, str(self), str(kind))
            if not types.is_boolean(kind):
                raise unusable_type(column.name, str(self), str(kind))

    def _read_rows(self, spool: Spool | None) -> Any:
        return self._read_query(spool) if self.path is None else self._read_file(self.folder / self.path, spool)

    def _read_file(self, path: Path, spool: Spool | None) -> Any:
        from woodlot.data.formats import read_arrow, read_csv, read_parquet

        table = self._of_file(
            path,
            {
                "CSV": lambda: read_csv(path, self.id, self._used, self._check_types, spool),
                "Parquet": lambda: read_parquet(path, self._used, spool),
                "Arrow": lambda: read_arrow(path, self._used, spool),
            },
            "and it is kept on disk" if spool is None else "and give the process that much",
        )
        return table.replace_schema_metadata(None)

    def _of_file(self, path: Path, readers: Mapping[str, Callable[[], T]], advice: str) -> T:
        """What the reader of its kind makes of a file; `advice` is for one that does not fit into memory."""
        import pyarrow as pa

        kind = FILE_KINDS[str(_ending(path))]
        if not path.is_file():
            found = "is not a file" if path.exists() else "is not there"
            raise DataError(f"{self} {found}; correct the setting path")
        try:
            if path.stat().st_size == 0:
                raise DataError(f"{self} is empty; write the file again")
            return readers[kind]()
        except MemoryError:
            raise DataError(
                f"{self} does not fit into memory; set memory in the party's configuration, {advice}"
            ) from None
        except PermissionError:
            raise DataError(f"{self} may not be read by this user; change the permissions of the file") from None
        except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            words = " ".join(str(error).split())[:200]
            raise DataError(f"{self} is damaged or is no {kind} file: {words}; write it again") from None

    def _read_query(self, spool: Spool | None) -> Any:
        from woodlot.data.formats import rows_to_table

        return self._of_query(lambda parts, names: rows_to_table(parts, names, self._used(names), str(self), spool))

    def _of_query(self, take: Callable[[Any, list[str]], T]) -> T:
        """What is made of the query's rows, which come in parts, and the names of its columns."""
        sqlalchemy = need("sqlalchemy", "sql")
        from woodlot.data.formats import ROWS_OF_A_QUERY

        password = self._password()
        try:
            url = self._located(sqlalchemy.make_url(self.url or ""))
            if password is not None:
                url = url.set(password=password)
            engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool, hide_parameters=True)
            with engine.connect() as connection:  # never committed: a query that writes is undone
                connection = connection.execution_options(yield_per=ROWS_OF_A_QUERY)
                result = connection.execute(sqlalchemy.text(self.sql or ""))
                if not result.returns_rows:
                    raise DataError(f"{self} gives no table; the setting sql must be a SELECT")
                names = list(result.keys())
                return take(result.partitions(), names)
        except DataError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a driver raises may quote the URL with its password
            problem = " ".join(_without(password, _words_of_database(error)).split())[:300]
        # Raised only here, so that the driver's error does not go along as its context.
        raise DataError(f"{self} cannot be read: {problem}; check the settings sql and url, and the password")

    def _located(self, url: Any) -> Any:
        """The URL with the path of a SQLite file made absolute. SQLite would make a file that is not there."""
        file = url.database
        if url.get_backend_name() != "sqlite" or not file or file == ":memory:" or file.startswith("file:"):
            return url
        path = self.folder / file
        if not path.is_file():
            raise DataError(f"{self} is in a database that is not there, {path}; correct the setting url")
        return url.set(database=str(path))

    def _password(self) -> str | None:
        if self.password_file is not None:
            path = self.folder / self.password_file
            return read_private(path, f"the password of table {self.name!r}").decode(errors="surrogateescape")
        if self.password_env is None:
            return None
        password = os.environ.get(self.password_env)
        if not password:
            raise DataError(f"{self} needs its password in the environment variable {self.password_env}; set it")
        return password


@dataclass(frozen=True)
class MemoryTable(TableSource):
    """A table that its owner has in this process; other parameters as for `TableSource`.

    Attributes
    ----------
    arrow : pyarrow.Table
        The id column and the others.

    """

    arrow: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check nothing: neither a file nor a query was named."""

    def __str__(self) -> str:
        return f"table {self.name!r}"

    def _read_rows(self, spool: Spool | None) -> Any:
        return self.arrow.select(self._used(self.arrow.column_names))


@dataclass(frozen=True)
class TableFacts:
    """What `TableSource.inspect` has found.

    Attributes
    ----------
    n_rows : int
        Number of rows.
    ids : {"whole numbers", "text"}
        What the ids are.
    columns, features : tuple of str
        The columns that may be used, and those of them that may be learnt from.

    """

    n_rows: int
    ids: str
    columns: tuple[str, ...] = field(repr=False)
    features: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class LoadedTable:
    """A table in memory, as Arrow has it. Let go of it once what is needed has been taken.

    Attributes
    ----------
    name : str
        What jobs call the table.
    id : str
        The id column.
    arrow : pyarrow.Table
        The id column and the allowed columns.
    digest : str
        SHA-256 in hexadecimal of names, types and all values in the order of rows. The format of the file, its
        chunks and its compression do not matter.
    stamp : tuple of int or None
        `TableSource.stamp`, from before it was read.
    features : tuple of str
        The columns that may be learnt from.

    """

    name: str
    id: str
    arrow: Any
    digest: str
    stamp: Stamp | None
    features: tuple[str, ...]

    def __repr__(self) -> str:
        return f"LoadedTable({self.name!r}, {self.n_rows:,} rows, {len(self.columns)} columns)"

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.arrow.num_rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that may be used, labels and weights included."""
        return tuple(name for name in self.arrow.column_names if name != self.id)

    @property
    def ids(self) -> Any:
        """The id column as Arrow has it, unchecked: missing and repeated ids are for `canonical_ids` to find."""
        return self.arrow.column(self.id)

    def values(self, column: str) -> NDArray[Any]:
        """One column as it is, not rounded to float32: labels or weights."""
        from woodlot.data.values import column_values

        return column_values(self.arrow, column, f"table {self.name!r}")

    def table(self) -> Table:
        """Copy the allowed columns into the form that forests take; the ids are not among them."""
        from woodlot.data.tables import read_table

        return read_table(self.arrow, what=f"table {self.name!r}", skip=self.id)

    def stored(self, columns: Sequence[str], rows: NDArray[np.int64], spool: Spool) -> Table:
        """The same of some columns and rows (-1: one that is missing everywhere), kept on disk.

        In memory is one column at a time.
        """
        from woodlot.data.tables import Table, read_table

        def kept(name: str) -> Column:
            whole = read_table(self.arrow.select([name]), what=f"table {self.name!r}")
            column = spool.column(whole.take_or_missing(rows).columns[0])
            spool.let_go()
            return column

        return Table(tuple(columns), tuple(map(kept, columns)), len(rows))


def read_private(path: Path, what: str) -> bytes:
    """Read a secret from a file that only its owner may read.

    Parameters
    ----------
    path : Path
        The file. Line ends behind the secret are not part of it.
    what : str
        What errors call the secret.

    """
    try:
        with path.open("rb") as file:
            if os.name == "posix" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise ConfigError(f"{what} is in {path}, which is open to others; run: chmod 600 {path}")
            secret = file.read().rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"{what} cannot be read from {path}: {error.strerror}") from None
    if not secret:
        raise ConfigError(f"{what} is missing: {path} is empty; write it there")
    return secret


def _ending(path: Path) -> str | None:
    name = path.name.lower()
    return next((ending for ending in FILE_KINDS if name.endswith(ending)), None)


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _hint(name: str, names: Sequence[str]) -> str:
    """What may be wrong where a column is not among the names."""
    if any(re.fullmatch(r"\s*[-+.\d]*\s*", other) for other in names):  # cells rather than names: not to be quoted
        return "is the first line of the file the names of the columns?"
    if len(names) == 1 and (separator := re.search(r"[;\t|]", names[0])):
        return f"cells must be separated by commas, not by {separator[0]!r}"
    near = nearest(name, names)
    return f"did you mean {near!r}?" if near else f"it has {quoted(names)}"


def _words_of_database(error: Exception) -> str:
    """What a database said, but only where it does not speak of values."""
    from sqlalchemy import exc

    if isinstance(error, ImportError):
        return f"the database driver is not installed ({error.name})"
    if isinstance(error, exc.OperationalError | exc.ProgrammingError | exc.InterfaceError):
        return str(error.orig)
    if isinstance(error, exc.NoSuchModuleError):
        return "SQLAlchemy does not know this kind of database"
    if isinstance(error, exc.ArgumentError):
        return "SQLAlchemy does not understand the url"
    return type(error).__name__


def _without(secret: str | None, words: str) -> str:
    """Words without a secret, whichever of its characters were escaped, as in a URL or in quotes."""
    if not secret:
        return words
    characters = []
    for character in secret:
        escaped = "".join(f"%{byte:02x}" for byte in character.encode(errors="surrogateescape"))
        plus = r"|\+" if character == " " else ""
        characters.append(rf"\\{{0,2}}(?:{re.escape(character)}|{escaped}{plus})")
    return re.sub("".join(characters), "***", words, flags=re.IGNORECASE)
