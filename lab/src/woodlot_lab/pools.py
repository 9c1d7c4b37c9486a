"""Randomness computed beforehand, so that an encryption takes one multiplication.

No entry is handed out twice: not to two threads, and not by a process and the child it forks.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any

from woodlot.crypto.dtpkc import PublicKey
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import LocalProtocolError


class Pool:
    """h^r and g^r of one key.

    Parameters
    ----------
    key : PublicKey
        What is encrypted under.

    """

    def __init__(self, key: PublicKey) -> None:
        self._key = key
        self._start_anew()

    def _start_anew(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._ready: deque[tuple[Any, Any]] = deque()
        self._stream = SecretStream.fresh()

    def _own(self) -> threading.Lock:
        """The lock of this process. What a child has inherited is its parent's, the lock too: it may be held."""
        if self._process != os.getpid():
            self._start_anew()
        return self._lock

    def __len__(self) -> int:
        """How many encryptions are prepared."""
        with self._own():
            return len(self._ready)

    def fill(self, count: int) -> None:
        """Prepare this many more encryptions."""
        for _ in range(count):
            with self._own():
                self._ready.append(self._key.randomness(self._stream))

    def take(self, key: PublicKey) -> tuple[Any, Any]:
        """The next entry, made now where none is ready.

        Raises
        ------
        LocalProtocolError
            If the pool is another key's.

        """
        if key is not self._key and (key.h != self._key.h or key.group != self._key.group):
            raise LocalProtocolError("this pool was filled for another key")
        with self._own():
            return self._ready.popleft() if self._ready else self._key.randomness(self._stream)
