"""What tests of carried jobs have in common."""

from __future__ import annotations

import os

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - the parent of temporary folders
"""Where tests put many short-lived journals: a disk would make each of them wait for it."""

JOB = "0123456789abcdef" * 2
