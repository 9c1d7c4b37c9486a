"""Where a list of revocations is, as settings name it."""

from __future__ import annotations

from pathlib import Path
from typing import Self


class ListSource(str):
    """Where a list of revocations is: a path, or an address ``"https://host/revoked.pem"``."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read a path or an address, or raise ValueError."""
        if not isinstance(value, str) or not value:
            raise ValueError("expected a path, or an address such as 'https://authority.example/revoked.pem'")
        if "://" in value and not value.startswith("https://"):
            raise ValueError(f"{value!r} is neither a path nor an address that begins with https://")
        return cls(value)

    @property
    def is_web(self) -> bool:
        """Whether it is an address."""
        return self.startswith("https://")

    def below(self, folder: Path) -> Self:
        """The same, a relative path being relative to a folder."""
        return self if self.is_web else type(self)(folder / Path(self).expanduser())
