"""Files of a model's parts, whatever the model: one folder per role, no pickle, every byte under a digest.

::

    part.json, arrays.npz     a header in plain values, with the digest of the arrays and its own

The digests tell damage, not forgery: who can write the folder can write its digests. So what is read is checked to be
a sound part as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from woodlot.data.archives import ArrayFile
from woodlot.data.whole_files import make_private, replace_folder
from woodlot.exceptions import ModelFileError

COORDINATOR = "coordinator"
PARTY = "party-"
HEADER = "part.json"
ARRAYS = "arrays.npz"
VERSION = 1

Header = dict[str, Any]
Arrays = dict[str, NDArray[Any]]
Packed = tuple[Header, Arrays]

STUMBLES = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)
"""What code raises that is given well-formed values of the wrong sort."""

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def new_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder beside to write into, which becomes ``folder`` at once, or not at all; that must hold nothing yet."""
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelFileError(f"{target} is not an empty folder; save into a new one")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ModelFileError(f"{target} cannot be made: {error.strerror}; save into a folder that can") from None
    try:
        yield staging
        make_private(staging)
        if target.exists():
            target.rmdir()
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def write_own(
    folder: Path, kind: str, model: str, party: str, packed: Packed, beside: Mapping[str, bytes] | None = None
) -> str:
    """Write a party's part where it is, and files beside it; what is there already is replaced at once or not at all.

    Returns the part's fingerprint.
    """

    def fill(staging: Path) -> None:
        write_part(staging, kind, model, party, packed)
        for name, data in (beside or {}).items():
            (staging / name).write_bytes(data)

    replace_folder(folder, fill)
    return digest_of(packed)


def party_folder(party: str) -> str:
    """Name of a party's folder: its own name may hold what a path may not; the header has it as it is."""
    return f"{PARTY}{quote(party, safe=' ')}"


def coordinators_folder(folder: str | os.PathLike[str]) -> Path:
    """Where the coordinator's part is in what was saved; this may be that folder itself."""
    root = Path(folder)
    own = root if (root / HEADER).exists() else root / COORDINATOR
    if not (own / HEADER).exists():
        raise ModelFileError(f"{root} holds no coordinator's part; give the folder that save() wrote")
    return own


def format_of(folder: Path) -> str:
    """Which kind of model a part is of, as far as its header says; the part is not checked."""
    try:
        header = json.loads((folder / HEADER).read_bytes().decode())
    except (OSError, ValueError, RecursionError):
        return ""
    return str(header.get("format")) if isinstance(header, dict) else ""


def write_part(folder: Path, kind: str, model: str, role: str, packed: Packed) -> None:
    """Write the part of one role into a folder; ``model`` is what all parts of a model have in common."""
    header, arrays = packed
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ARRAYS
    # numpy's own way compresses three times as long for a few percent, which a user waits for after every training
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
    full = {
        "format": kind,
        "version": VERSION,
        "forest": model,
        "role": role,
        "arrays_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        **header,
    }
    (folder / HEADER).write_bytes(_signed(full).encode())


def _signed(header: Mapping[str, Any]) -> str:
    """The one way to write a header, with its own digest in it: any other byte is a change."""
    text = json.dumps(header, indent=1, sort_keys=True, allow_nan=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({**header, "sha256": digest}, indent=1, sort_keys=True, allow_nan=False) + "\n"


def read_part(folder: Path, kind: str) -> Packed:
    """Read a part of this kind of model; one that was changed or damaged is refused."""
    file = PartFile(folder, kind)
    return file.header, {name: file.read(name) for name in file.names()}


class PartFile:
    """A part of a model on disk: its header, and its arrays, each read when somebody asks for it.

    Parameters
    ----------
    folder : Path
        Where the part is; one that was changed or damaged is refused.
    kind : str
        The format that it must have.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self.header = _read_header(folder / HEADER, kind)
        self._path = folder / ARRAYS
        with self._readable():
            digest = hashlib.sha256(self._path.read_bytes()).hexdigest()
            if self.header.get("arrays_sha256") != digest:
                raise ModelFileError(f"{self._path} has been changed: its digest does not match")
            self._arrays = ArrayFile(self._path)

    def names(self) -> tuple[str, ...]:
        """Names of the arrays."""
        return self._arrays.names

    def read(self, name: str, first: int = 0, last: int | None = None) -> NDArray[Any]:
        """An array, or its items from ``first`` to before ``last``: what stands behind them is not even unpacked."""
        with self._readable():
            return self._arrays.read(name, first, last)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError) as error:
            raise ModelFileError(f"{self._path} cannot be read: {error}") from None


def _read_header(path: Path, kind: str) -> Header:
    try:
        text = path.read_bytes().decode()
        header = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} cannot be read as part of a model: {error}") from None
    if not isinstance(header, dict) or header.get("format") != kind:
        raise ModelFileError(f"{path} is not part of a Woodlot forest")
    if header.get("version") != VERSION:
        raise ModelFileError(f"{path} has version {header.get('version')}; this Woodlot reads version {VERSION}")
    header.pop("sha256", None)
    try:
        unchanged = text == _signed(header)
    except (ValueError, RecursionError):  # NaN and infinity, which are no JSON, and lists in lists in lists
        unchanged = False
    if not unchanged:
        raise ModelFileError(f"{path} has been changed: its digest does not match")
    if not all(isinstance(header.get(field), str) for field in ("forest", "role")):
        raise ModelFileError(f"{path} does not say whose part of which model it is")
    return header


def guarded(
    folder: Path,
    unpack: Callable[Concatenate[Header, Arrays, P], T],
    packed: Packed,
    *context: P.args,
    **more: P.kwargs,
) -> T:
    """What ``unpack`` makes of a part; what it stumbles over is a damaged file."""
    try:
        return unpack(*packed, *context, **more)
    except STUMBLES as error:
        raise ModelFileError(f"{folder} is not a sound part of a forest: {error}") from None


def digest_of(packed: Packed) -> str:
    """Fingerprint of a part, whatever the version of the library that compresses the arrays."""
    header, arrays = packed
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
