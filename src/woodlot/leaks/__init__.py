"""Known attacks on Woodlot's protocols, run against one's own job in simulation: what each role could learn.

Every attack works on the messages that its role really gets, recorded while models are trained and used in this
process, and on what the role has anyway: its own columns, and where it says so a few labels or values that it knows
from elsewhere. No party's private state is read. The truth is only used to mark the results.
"""

from __future__ import annotations

from woodlot.leaks.case import Case, Finding, case_of, made_up_case
from woodlot.leaks.leak_test import PARTS, Part, run_leak_test
from woodlot.leaks.theft import PolicyGuard

__all__ = [
    "PARTS",
    "Case",
    "Finding",
    "Part",
    "PolicyGuard",
    "case_of",
    "made_up_case",
    "run_leak_test",
]
