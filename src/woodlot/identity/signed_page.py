"""Reports for people, signed: an HTML file whose last lines are the signature under all that stands before them.

What a reader sees is what was signed. Whoever changes, adds or removes a byte breaks the signature; the page itself has
no script that could show something else.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from woodlot.data.decoding import from_json
from woodlot.exceptions import ReceiptError
from woodlot.identity.receipts import (
    MAX_BYTES,
    PurposeSigner,
    Signed,
    Verdict,
    check_signature,
    signing_time,
    vouched_signer,
)

PURPOSE = "compliance report"
"""What the signatures are for."""
MARK = '<meta name="woodlot-report" content="{}">'
"""What a page must have once: the time at which it was made."""
SIGNER = "<dt>signed by</dt><dd>{}, {}</dd>"
"""What a page must have once, for its reader to see: name and role of who signs it."""

_BEGIN, _END = b"<!-- woodlot-signature ", b" -->\n"
_MADE = re.compile(rb'<meta name="woodlot-report" content="([^"]{1,40})">')
_SIGNER = re.compile(rb"<dt>signed by</dt><dd>([A-Za-z0-9_-]{1,63}), (coordinator|party)</dd>")


@dataclass(frozen=True)
class SignedPage:
    """A page and the signature under it.

    Attributes
    ----------
    page : bytes
        What was signed.
    signed : Signed
        The signature, and whose it is.
    """

    page: bytes
    signed: Signed

    @classmethod
    def make(cls, page: str, signer: PurposeSigner) -> Self:
        """Sign a page, which must have `MARK` and `SIGNER` once."""
        data = page.encode()
        if not _is_marked(data) or _BEGIN in data:
            raise ReceiptError(
                "a report must say once when it was made and who signs it, and must not have a signature yet"
            )
        return cls(data, signer.signed(data, PURPOSE))

    @property
    def made(self) -> str:
        """When it was made, as it says."""
        (made,) = _MADE.findall(self.page)
        return str(made, errors="replace")

    @property
    def says(self) -> str:
        """Role and name of who has signed it, as it says."""
        ((name, role),) = _SIGNER.findall(self.page)
        return f"{role.decode()} {name.decode()!r}"

    def to_bytes(self) -> bytes:
        """The file."""
        return self.page + _BEGIN + base64.b64encode(msgspec.json.encode(self.signed)) + _END

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read a file; `verify` checks it."""
        page, begin, rest = data.rpartition(_BEGIN)
        if not begin or not rest.endswith(_END) or not _is_marked(page):
            raise ReceiptError(
                "this is no signed report: its signature is missing, something stands after it, or it does not say "
                "once when it was made and who has signed it"
            )
        try:
            signed = from_json(base64.b64decode(rest.removesuffix(_END), validate=True), Signed)
        except (ValueError, RecursionError) as error:
            raise ReceiptError(f"the signature of the report cannot be read: {error}") from None
        return cls(page, signed)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file; `verify` checks it."""
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ReceiptError(f"{path} is too large for a report")
            return cls.parse(path.read_bytes())
        except OSError as error:
            raise ReceiptError(f"{path} cannot be read: {error.strerror}") from None

    def verify(self, authority: bytes | None = None) -> Verdict:
        """Check the report offline.

        Parameters
        ----------
        authority : bytes, optional
            The certificate (PEM) of the federation's authority, which vouches for whoever has signed.

        Raises
        ------
        ReceiptError
            Where anything is not as it was signed.
        """
        signer = check_signature(self.signed, PURPOSE, self.page, "the report")
        if authority is None:
            return Verdict(f"key {signer}", "", False)
        when = signing_time(self.made)
        found = vouched_signer(self.signed, authority, when, ("coordinator", "party"), "the report")
        if found != self.says:  # each member could sign what it likes in another's name
            raise ReceiptError(f"the report says that it is by {self.says}, and {found} has signed it")
        return Verdict(found, "", True)


def _is_marked(page: bytes) -> bool:
    """Whether a page says once when it was made, and once who signs it."""
    return len(_MADE.findall(page)) == 1 == len(_SIGNER.findall(page))


def is_report(path: Path) -> bool:
    """Whether a file says that it is a report; `SignedPage.load` checks it."""
    try:
        with path.open("rb") as file:
            return _MADE.search(file.read(MAX_BYTES)) is not None
    except OSError:
        return False
