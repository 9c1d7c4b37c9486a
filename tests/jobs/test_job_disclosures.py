"""What an owner is shown before an order is approved has every message that the job can send."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from woodlot.jobs.approvals import AskedJob
from woodlot.jobs.forget.forget_orders import ForgetOrder
from woodlot.jobs.forget.forget_work import ForgetWork
from woodlot.jobs.job_disclosures import messages_of
from woodlot.jobs.orders import Order, Part, PredictOrder, RowSubset, TrainOrder
from woodlot.jobs.rows.rows_orders import TrainRowsOrder
from woodlot.protocols.core.message import registered
from woodlot.protocols.rows.collaborative import CollaborativeClient
from woodlot.protocols.rows.extra_client import ExtraTreesClient
from woodlot.protocols.rows.local_forests import LocalClient
from woodlot.protocols.rows.lossless import LosslessClient
from woodlot.protocols.rows.private import PrivateClient
from woodlot.protocols.rows.row_client import HorizontalClient

HERE = {"job": "0" * 32, "created": 0.0, "federation": "", "coordinator": "", "parties": (), "sealed": {}}


@pytest.mark.parametrize("client", [LocalClient, CollaborativeClient, ExtraTreesClient, LosslessClient, PrivateClient])
def test_trainings_over_rows(client: type[HorizontalClient]) -> None:
    shown = messages_of(TrainRowsOrder(**HERE, plan=None, settings=""))  # type: ignore[arg-type]
    assert set(client.handlers) <= set(shown)


def test_who_has_a_role_and_who_gets_answers_is_shown_to_who_approves() -> None:
    here: Any = HERE | {"parties": ("bank", "notary", "shop"), "led_by": "bank"}
    training = TrainOrder(**here, holder="bank", plan=None, settings="", server="shop", alignment="1" * 32)
    facts = AskedJob.of(training, Part(table="customers"), "alice").facts()
    assert (facts["second server"], facts["dealer"]) == ("shop", "the coordinator")
    part = (RowSubset(0, 0, 2**63),)
    helped = msgspec.structs.replace(training, dealer="notary", subset=part)
    facts = AskedJob.of(helped, Part(table="customers"), "alice").facts()
    assert (facts["dealer"], facts["rows"]) == ("notary", "a part of them")
    predicting = PredictOrder(**here, model="0" * 32, deliver_to="shop", score_at="bank")
    facts = AskedJob.of(predicting, Part(table="customers"), "alice").facts()
    assert facts["scored at"] == "bank"
    assert {"alice", "shop"} <= set(facts["answers to"].split(", "))


def test_rows_that_are_forgotten() -> None:
    order: Order = ForgetOrder(**HERE, model="0" * 32, alignment="0" * 32, led_by="bank")  # type: ignore[arg-type]
    shown = set(messages_of(order))
    own = {kind for kind in ForgetWork.handlers if kind.__module__.endswith("forget_messages")}
    assert own
    assert own <= shown
    assert shown < set(registered().values())  # and not all that there is
