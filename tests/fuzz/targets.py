"""What is fuzzed: each target takes any bytes, and lets nothing out but Woodlot's own errors.

`scripts/fuzz.py` runs them under a coverage-guided fuzzer; `test_replay.py` replays seeds, damage and every crash that
was ever found, without one.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import signed_targets
import state_targets
from workshop import copy_of, federation, folder, saved_models

import woodlot as wl
from woodlot.data.archives import parse_array, read_arrays
from woodlot.data.ids import canonical_ids
from woodlot.data.sources import TableSource
from woodlot.data.spool import Spool
from woodlot.engines.signed_order import SignedOrder
from woodlot.exceptions import WoodlotError
from woodlot.identity import certificates
from woodlot.identity.certificates import CertificateRequest, Revocations
from woodlot.identity.identity import Trust
from woodlot.identity.receipts import Receipt
from woodlot.jobs import every_message  # noqa: F401 - every message must be known
from woodlot.jobs.order_seal import open_part, read_order
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.frames import Assembler
from woodlot.service.config import CoordinatorConfig, JobConfig, MemberConfig, PartyConfig

LIMIT = 1 << 20
"""The largest message that is taken here: what may be allocated for a message is known."""

Target = Callable[[bytes], None]


def codec(data: bytes) -> None:
    """A message, which then goes back to the same bytes."""
    message = decode(data, limit=LIMIT)
    again = encode(message, limit=2 * LIMIT)
    assert encode(decode(again, limit=2 * LIMIT), limit=2 * LIMIT) == again


def frames(data: bytes) -> None:
    """A connection: frames, each behind two bytes of length."""
    assembler = Assembler(LIMIT, frame_limit=1 << 16, max_unfinished=4)
    at = 0
    while at + 2 <= len(data):
        (length,) = struct.unpack_from("<H", data, at)
        parcel = assembler.feed(data[at + 2 : at + 2 + length])
        at += 2 + length
        if parcel is not None:
            decode(parcel.data, limit=LIMIT)


def archives(data: bytes) -> None:
    """The arrays of a model, raw."""
    with suppress(ValueError):  # what the callers turn into their own errors
        read_arrays(io.BytesIO(data))
    with suppress(ValueError):
        parse_array(data)


# --- models ---


@dataclass(frozen=True)
class Part:
    """A part of a saved model in a form in which it can be changed: which file, its header, its arrays."""

    model: str
    place: str
    header: bytes
    arrays: bytes

    def pack(self) -> bytes:
        return struct.pack("<I", len(self.header)) + self.header + self.arrays


def parts(root: Path) -> list[Part]:
    """All parts of the models below a folder."""
    return [
        Part(path.relative_to(root).parts[0], str(path.parent.relative_to(root)), path.read_bytes(), _arrays(path))
        for path in sorted(root.rglob("part.json"))
    ]


def _arrays(header: Path) -> bytes:
    return header.with_name("arrays.npz").read_bytes()


@cache
def known_parts() -> list[Part]:
    return parts(saved_models())


def models(data: bytes) -> None:
    """A part of a model is replaced, with right digests where its header is JSON: then the whole is loaded."""
    if len(data) < 5:
        return
    known = known_parts()
    part = known[data[0] % len(known)]
    (length,) = struct.unpack_from("<I", data, 1)
    header, arrays = data[5 : 5 + length], data[5 + length :]
    copy, again = copy_of(part.model), folder() / "again"
    place = copy / Path(part.place).relative_to(part.model)
    try:
        (place / "part.json").write_bytes(signed(header, arrays))
        (place / "arrays.npz").write_bytes(arrays)
        model: Any = wl.load(copy)
        model.save(again)
    finally:
        (place / "part.json").write_bytes(part.header)
        (place / "arrays.npz").write_bytes(part.arrays)
        shutil.rmtree(again, ignore_errors=True)


def signed(header: bytes, arrays: bytes) -> bytes:
    """A header under the digests that somebody would write who knows how they are made."""
    try:
        fields = json.loads(header)
        fields.pop("sha256", None)
        fields["arrays_sha256"] = hashlib.sha256(arrays).hexdigest()
        text = json.dumps(fields, indent=1, sort_keys=True, allow_nan=False)
        fields["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        return (json.dumps(fields, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        return header


def forests(data: bytes) -> None:
    """Arrays of a sound part are changed in place, number by number: what no digest and no type would notice."""
    if len(data) < 4:
        return
    known = known_parts()
    number = data[0] % len(known)
    arrays = {name: array.copy() for name, array in read_arrays(io.BytesIO(known[number].arrays)).items()}
    for at in range(1, len(data) - 11, 12):
        name = sorted(arrays)[data[at] % len(arrays)]
        flat = arrays[name].reshape(-1)
        if data[at + 1] & 1:
            arrays[name] = flat[: max(0, len(flat) - 1 - data[at + 2] % 8)]
        elif len(flat):
            where = int.from_bytes(data[at + 2 : at + 4], "little") % len(flat)
            fresh = np.frombuffer(data, np.uint8, flat.itemsize, at + 4)
            flat[where : where + 1].view(np.uint8)[:] = fresh
            if flat.dtype == bool:
                flat[where] = bool(data[at + 4] & 1)
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]
    models(bytes([number]) + Part("", "", known[number].header, packed.getvalue()).pack())


# --- what is signed ---


def receipts(data: bytes) -> None:
    """A receipt, read and checked with and without an authority."""
    receipt = Receipt.parse(data)
    repr(receipt)
    for authority in (None, federation().ca, data):
        with suppress(WoodlotError):
            receipt.verify(authority)


def orders(data: bytes) -> None:
    """An order, as a party reads it, and the line of text in which engines carry it."""
    bank = federation().identity("bank")
    for read in (
        lambda: open_part(read_order(data), bank),
        lambda: SignedOrder.decode(data.decode("latin-1")).content,
    ):
        with suppress(WoodlotError):
            read()


def certificate_files(data: bytes) -> None:
    """Certificates, requests, lists of revocations and keys."""
    authority = certificates.parse_authority(federation().ca, "the authority")
    trust = Trust(federation().ca, None)
    key = folder() / "key.pem"
    key.touch(certificates.OWNER_ONLY)
    key.write_bytes(data)
    for read in (
        lambda: trust.admit(data),
        lambda: trust.update(data),
        lambda: CertificateRequest.parse(data, "a request"),
        lambda: Revocations.parse(data, authority, "a list"),
        lambda: certificates.parse_authority(data, "an authority"),
        lambda: certificates.subject_of(certificates.parse_certificate(data, "a certificate"), "a certificate"),
        lambda: certificates.read_key(key, "nothing"),
        lambda: Trust(data, None),
    ):
        with suppress(WoodlotError):
            read()


# --- configuration and tables ---


def configuration(data: bytes) -> None:
    """A file of settings, as each role would read it."""
    path = folder() / "settings.toml"
    path.write_bytes(data)
    for kind in (PartyConfig, CoordinatorConfig, MemberConfig, JobConfig):
        with suppress(WoodlotError):
            kind.load(path)


ENDINGS = (".csv", ".csv.gz", ".parquet", ".arrow")


def tables(data: bytes) -> None:
    """A table in a file, of a kind that the first byte names, into memory or onto the disk."""
    if not data:
        return
    ending = ENDINGS[data[0] % len(ENDINGS)]
    path = folder() / f"table{ending}"
    path.write_bytes(data[1:])
    spool = Spool(folder()) if data[0] & 0x80 else None
    loaded = TableSource("t", id="id", path=Path(path.name), folder=folder()).read(spool)
    for use in (loaded.table, lambda: canonical_ids(loaded.ids, "ids"), lambda: loaded.values(loaded.columns[0])):
        with suppress(WoodlotError):
            use()


TARGETS: dict[str, Target] = {
    "codec": codec,
    "frames": frames,
    "archives": archives,
    "models": models,
    "forests": forests,
    "receipts": receipts,
    "orders": orders,
    "certificates": certificate_files,
    "configuration": configuration,
    "tables": tables,
    "statements": signed_targets.statements,
    "parts": signed_targets.parts,
    "issued": signed_targets.issued,
    "state": state_targets.state,
    "requests": state_targets.requests,
}


def run(name: str, data: bytes) -> bool:
    """Whether a target took the bytes; it may refuse them by an error of Woodlot's own, and by no other."""
    try:
        TARGETS[name](data)
    except WoodlotError:
        return False
    return True
