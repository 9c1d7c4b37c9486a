"""Every wire message of every protocol: what is not in one of these modules does not travel."""

from __future__ import annotations

from types import ModuleType

from woodlot.jobs import job_messages, row_job_messages
from woodlot.jobs.catalog import catalog_messages
from woodlot.jobs.delete import delete_messages
from woodlot.jobs.drift import drift_messages
from woodlot.jobs.evaluate import evaluate_messages, pooled_messages
from woodlot.jobs.explain import explanation_messages
from woodlot.jobs.forget import forget_messages
from woodlot.jobs.led import led_messages
from woodlot.protocols.align import align_messages
from woodlot.protocols.core import message
from woodlot.protocols.hidden import hidden_messages
from woodlot.protocols.linear import dealt_messages, linear_messages
from woodlot.protocols.revocable import growth_messages, key_messages, share_messages
from woodlot.protocols.rows import extra_messages, row_messages
from woodlot.protocols.rows.lossless import lossless_messages
from woodlot.protocols.rows.private import private_messages
from woodlot.protocols.sums import sum_messages
from woodlot.protocols.vertical import explain_messages, forest_messages, score_messages, sealed_messages

MODULES: tuple[ModuleType, ...] = (
    message,
    job_messages,
    row_job_messages,
    evaluate_messages,
    explanation_messages,
    pooled_messages,
    drift_messages,
    catalog_messages,
    delete_messages,
    forget_messages,
    led_messages,
    align_messages,
    forest_messages,
    sealed_messages,
    score_messages,
    explain_messages,
    hidden_messages,
    growth_messages,
    key_messages,
    share_messages,
    linear_messages,
    dealt_messages,
    row_messages,
    extra_messages,
    lossless_messages,
    private_messages,
    sum_messages,
)
"""Where they are declared, in the order in which documents tell of them."""
