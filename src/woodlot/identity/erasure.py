"""Receipts of forgotten rows: JSON, signed, checked by anybody without asking anybody.

A receipt says how many rows a model has forgotten, under which fingerprints it was known before and is known since, and
what was searched and grown for it. Ids stand in it as keyed digests: who has the key, which is no part of the receipt,
can check that an id is among them, and nobody else can guess ids.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec

from woodlot.exceptions import ReceiptError
from woodlot.identity.receipts import (
    MAX_BYTES,
    Count,
    PurposeSigner,
    Sha256,
    Signed,
    TreeChange,
    Verdict,
    WrittenReceipt,
    check_signature,
    signing_time,
    vouched_signer,
)

ERASURE = "erasure receipt"
CONFIRMED = "erasure confirmed"
"""What the signatures are for: that of the receipt, and those of parties elsewhere under what it states."""
FORMAT: Literal["woodlot-erasure-receipt"] = "woodlot-erasure-receipt"
NOT_REACHED = (
    "backups and copies of the tables, which their owners keep",
    "copies of the former model, and answers that it has given",
    "what people and other systems remember of the row or of its answers",
)
"""What no process can erase for others; every receipt says so."""


class ErasureStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What a receipt states.

    Attributes
    ----------
    model : str
        Fingerprint of the coordinator's part before.
    rows : int
        Rows that the model has forgotten.
    unknown : int
        Ids that were asked for and are of no row of the model.
    ids : tuple of str
        HMAC-SHA256 of each id, ascending.
    before, after : dict of str to str
        SHA-256 of every part.
    rows_left : int
        Rows that the model is of now.
    again : str
        Why all trees were grown again; empty where they were not.
    searched, stood : int
        Nodes that were searched again, and large nodes whose split stood by the bound.
    trees : tuple of TreeChange
        Where nodes were grown again.
    nodes_before, nodes_after : int
        Of all trees.
    proved : bool
        Whether a forest was grown without the rows and compared: it was the same to the bit.
    not_reached : tuple of str
        What was not erased.
    parties : tuple of str
        Those whose signatures stand under it, where they are elsewhere.
    """

    model: Sha256
    created: str
    rows: Count
    unknown: Count
    ids: tuple[Sha256, ...]
    before: dict[str, Sha256]
    after: dict[str, Sha256]
    rows_left: Count
    again: str
    searched: Count
    stood: Count
    trees: tuple[TreeChange, ...]
    nodes_before: Count
    nodes_after: Count
    seconds: float
    proved: bool
    not_reached: tuple[str, ...]
    parties: tuple[str, ...] = ()


class _ErasurePaper(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: Literal["woodlot-erasure-receipt"]
    version: Literal[1]
    statement: ErasureStatement


class _ErasureFile(_ErasurePaper, frozen=True, omit_defaults=True):
    signed: Signed
    confirmed: dict[str, Signed] = {}


class ErasureReceipt(WrittenReceipt):
    """A signed receipt. ``statement`` is what it says.

    Parameters
    ----------
    file : _ErasureFile
        The receipt with its signature; read one with `ErasureReceipt.load`.
    key : bytes
        The key of the ids' digests; empty where it is not known. It is no part of the receipt.
    """

    file_type = _ErasureFile
    of_what = "forgotten rows"

    def __init__(self, file: _ErasureFile, key: bytes = b"") -> None:
        super().__init__(file)
        self.statement = file.statement
        self.key = key

    def __repr__(self) -> str:
        s = self.statement
        how = (
            "all trees grown again"
            if s.again
            else f"{s.searched:,} nodes searched, {sum(tree.regrown for tree in s.trees):,} regrown"
        )
        return f"ErasureReceipt: {s.rows:,} rows forgotten, {s.unknown:,} ids unknown; {how}"

    def _in_words(self) -> dict[str, str]:
        s = self.statement
        return {
            "rows": f"{s.rows:,} forgotten, {s.rows_left:,} left; {s.unknown:,} ids were in no row",
            "nodes": f"{s.nodes_before:,} before, {s.nodes_after:,} after",
            "all trees grown again": s.again or "no",
            "compared with a training without the rows": "yes, the same" if s.proved else "no",
            "not erased": "; ".join(s.not_reached) or "all parts were reached",
        }

    def names(self, id: bytes, key: bytes) -> bool:
        """Whether an id, in canonical form, is among those of the receipt."""
        return id_digest(id, key) in self.statement.ids

    def verify(self, authority: bytes | None = None) -> Verdict:
        """Check the receipt offline: its signature, and that its numbers go together.

        Parameters
        ----------
        authority : bytes, optional
            The certificate (PEM) of the federation's authority, which vouches for whoever has signed.

        Raises
        ------
        ReceiptError
            Where anything is not as it was signed.
        """
        statement = self.statement
        confirmed, paper = self._file.confirmed, statement_paper(statement)
        signer = check_signature(self._file.signed, ERASURE, paper, "the receipt")
        check_erasure(statement)
        if set(confirmed) != set(statement.parties):
            raise ReceiptError("the receipt lacks the signature of a party that it names, or has one more")
        for party, signed in confirmed.items():
            check_signature(signed, CONFIRMED, paper, f"what {party!r} has confirmed")
        if authority is None:
            return Verdict(f"key {signer}", "", False)
        when = signing_time(statement.created)
        roles = ("party", "coordinator", "user")
        for party, signed in confirmed.items():
            what = f"what {party!r} has confirmed"
            if (found := vouched_signer(signed, authority, when, ("party",), what)) != f"party {party!r}":
                raise ReceiptError(f"{what} is signed by {found}")
        return Verdict(vouched_signer(self._file.signed, authority, when, roles, "the receipt"), "", True)


def is_erasure(path: Path) -> bool:
    """Whether a file says that it is a receipt of forgotten rows; `ErasureReceipt.load` checks it."""
    try:
        with path.open("rb") as file:
            return FORMAT.encode() in file.read(MAX_BYTES)
    except OSError:
        return False


def id_digest(id: bytes, key: bytes) -> str:
    """What stands for an id in a receipt."""
    return hmac.new(key, id, hashlib.sha256).hexdigest()


def make_erasure(
    statement: ErasureStatement,
    signer: PurposeSigner,
    key: bytes,
    confirmed: Mapping[str, Signed] = MappingProxyType({}),
) -> ErasureReceipt:
    """Sign a statement; ``confirmed``: the signatures of parties elsewhere under it."""
    signed = signer.signed(statement_paper(statement), ERASURE)
    file = _ErasureFile(format=FORMAT, version=1, statement=statement, signed=signed, confirmed=dict(confirmed))
    return ErasureReceipt(file, key)


def fresh_key() -> bytes:
    """A key for the digests of one receipt's ids."""
    return secrets.token_bytes(32)


def digests_of(ids: Sequence[bytes], key: bytes) -> tuple[str, ...]:
    """Digests of ids, in an order that tells nothing."""
    return tuple(sorted(id_digest(id, key) for id in ids))


def statement_text(statement: ErasureStatement) -> str:
    """A statement as JSON, for those who are to sign it."""
    return msgspec.json.encode(statement, order="deterministic").decode()


def statement_paper(statement: ErasureStatement) -> bytes:
    """What the signatures are under."""
    return msgspec.json.encode(_ErasurePaper(format=FORMAT, version=1, statement=statement), order="deterministic")


def check_erasure(s: ErasureStatement) -> None:
    """Refuse numbers that do not go together."""
    removed, regrown = sum(tree.removed for tree in s.trees), sum(tree.regrown for tree in s.trees)
    if s.nodes_before - removed + regrown != s.nodes_after:
        raise ReceiptError("the numbers of nodes do not add up")
    if s.model not in s.before.values() or set(s.before) != set(s.after):
        raise ReceiptError("the fingerprints are not those of the same parts before and after")
    if len(set(s.ids)) != len(s.ids) or list(s.ids) != sorted(s.ids) or len(s.ids) < s.unknown:
        raise ReceiptError("the ids do not stand there once each, in order")
