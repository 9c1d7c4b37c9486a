"""Where a member looks for the authority's list of revocations itself, so that it need not wait for the coordinator."""

from __future__ import annotations

import logging
import time
import urllib.error
import urllib.request
from pathlib import Path

from woodlot.exceptions import IdentityError
from woodlot.identity.certificates import MAX_FILE, read_file
from woodlot.identity.list_source import ListSource

_log = logging.getLogger(__name__)

REFRESH_SECONDS = 3600.0
"""How often an address is asked for a new list."""

RETRY_SECONDS = 60.0
"""How often it is asked as long as the list in use has ended."""

_TIMEOUT_SECONDS = 10.0


class RevocationSource:
    """A file, or an address ``https://...``.

    The authority's signature under the list counts, not where it comes from. Not for several threads at once.

    Parameters
    ----------
    where : ListSource
        From the configuration.

    """

    def __init__(self, where: ListSource) -> None:
        self.where = where
        self._asked: float | None = None

    def read(self, *, is_fresh: bool) -> bytes | None:
        """What is there now; None where that is not known, or an address was asked a short while ago.

        Parameters
        ----------
        is_fresh : bool
            Whether the list in use is good: then an address is asked less often.

        """
        if self.where.is_web:
            return self._fetch(REFRESH_SECONDS if is_fresh else RETRY_SECONDS)
        try:
            return read_file(Path(self.where), "put the list of revocations there, or correct the setting revocations")
        except IdentityError as error:
            _log.warning("no list of revocations is read: %s", error)
            return None

    def _fetch(self, pause: float) -> bytes | None:
        now = time.monotonic()
        if self._asked is not None and now - self._asked < pause:
            return None
        self._asked = now
        try:
            # the setting takes https only, and what comes is checked by its signature
            with urllib.request.urlopen(self.where, timeout=_TIMEOUT_SECONDS) as reply:  # noqa: S310
                data: bytes = reply.read(MAX_FILE + 1)
        except (OSError, ValueError, urllib.error.URLError) as error:
            _log.warning("no list of revocations comes from %s: %s", self.where, error)
            return None
        if len(data) > MAX_FILE:
            _log.warning("what comes from %s is too large to be a list of revocations", self.where)
            return None
        return data
