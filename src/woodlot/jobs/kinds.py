"""The table of kinds: the one place that lists them."""

from __future__ import annotations

from woodlot.jobs.catalog.catalog_jobs import CatalogOrder, CatalogWork, catalog_job, keep_catalog
from woodlot.jobs.columns import columns_jobs as columns
from woodlot.jobs.columns import revoke_jobs as leaving
from woodlot.jobs.columns.columns_work import ColumnsWork
from woodlot.jobs.columns.revoke_work import RevokeWork
from woodlot.jobs.delete.delete_jobs import DeleteOrder, DeleteWork, check_deletion, delete_job, keep_deletion
from woodlot.jobs.drift import drift_jobs as drifting
from woodlot.jobs.drift.drift_orders import DriftOrder
from woodlot.jobs.drift.drift_work import DriftWork
from woodlot.jobs.evaluate import evaluate_jobs as evaluation
from woodlot.jobs.evaluate import pooled_jobs as pooled
from woodlot.jobs.evaluate.evaluate_work import EvaluateLinearWork, EvaluateWork
from woodlot.jobs.evaluate.pooled_work import EvaluateRowsWork
from woodlot.jobs.explain import explain_jobs as explaining
from woodlot.jobs.explain.explain_orders import ExplainOrder
from woodlot.jobs.explain.explain_work import ExplainWork
from woodlot.jobs.forget import forget_jobs as forgetting
from woodlot.jobs.forget import forget_rows_jobs as forgetting_rows
from woodlot.jobs.forget.forget_orders import ForgetOrder, ForgetRowsOrder
from woodlot.jobs.forget.forget_rows_work import ForgetRowsWork
from woodlot.jobs.forget.forget_work import ForgetWork
from woodlot.jobs.hidden.hidden_jobs import deal_hidden
from woodlot.jobs.hidden.hidden_leaving import deal_leaving
from woodlot.jobs.kind import Kind
from woodlot.jobs.linear import linear_jobs as linear
from woodlot.jobs.linear.linear_dealing import deal_products
from woodlot.jobs.linear.linear_orders import EvaluateLinearOrder, PredictLinearOrder, TrainLinearOrder
from woodlot.jobs.linear.linear_work import LinearWork
from woodlot.jobs.orders import AlignOrder, EvaluateOrder, PredictOrder, RevokeOrder, ScoreOrder, TrainOrder
from woodlot.jobs.revocable import key_jobs as keys
from woodlot.jobs.revocable import revocable_jobs as revocable
from woodlot.jobs.revocable.provider_work import ProviderWork
from woodlot.jobs.revocable.revocable_orders import (
    KeysOrder,
    PredictEncryptedOrder,
    RevokeRevocableOrder,
    TrainRevocableOrder,
)
from woodlot.jobs.revocable.revocable_work import RevocableWork
from woodlot.jobs.rows import rows_jobs as rows
from woodlot.jobs.rows.rows_orders import EvaluateRowsOrder, PredictRowsOrder, RevokeRowsOrder, TrainRowsOrder
from woodlot.jobs.rows.rows_work import PredictRowsWork, TrainRowsWork
from woodlot.jobs.scores import score_jobs as scores
from woodlot.jobs.scores.score_work import ScoreWork

LEAVE = "have a party leave it"

KINDS = (
    # --- different columns of the same rows ---
    Kind(
        order=AlignOrder,
        right="align",
        protocol=columns.align_job,
        work=ColumnsWork,
        keep=columns.keep_alignment,
        outcome="rows",
    ),
    Kind(
        order=TrainOrder,
        right="train",
        protocol=columns.train_job,
        work=ColumnsWork,
        keep=columns.keep_training,
        outcome="model",
        keeps_order="done",
        led=True,
        dealer=deal_hidden,
        with_members=True,  # a helper may deal
    ),
    Kind(
        order=PredictOrder,
        right="predict",
        protocol=columns.predict_job,
        work=ColumnsWork,
        keep=columns.keep_prediction,
        check=columns.check_prediction,
        outcome="answers",
        keeps_order="done",
        led=True,
    ),
    Kind(
        order=RevokeOrder,
        right="train",
        protocol=leaving.revoke_job,
        work=RevokeWork,
        keep=leaving.keep_revocation,
        check=leaving.check_revocation,
        deed=LEAVE,
        party_orders=True,
        outcome="receipt",
        keeps_order="ended",  # it is the notice to the leaver
        led=True,
        dealer=deal_leaving,
        with_members=True,
    ),
    Kind(
        order=ForgetOrder,
        right="train",
        protocol=forgetting.forget_job,
        work=ForgetWork,
        keep=forgetting.keep_forgetting,
        check=forgetting.check_forgetting,
        deed="have it forget rows",
        party_orders=True,
        outcome="erasure",
        led=True,
    ),
    Kind(
        order=EvaluateOrder,
        right="predict",
        protocol=evaluation.evaluate_job,
        work=EvaluateWork,
        keep=evaluation.keep_evaluation,
        check=columns.check_prediction,
        keeps_order="done",
        led=True,
    ),
    Kind(
        order=ExplainOrder,
        right="predict",
        protocol=explaining.explain_job,
        work=ExplainWork,
        keep=explaining.keep_explanation,
        check=explaining.check_explanation,
        outcome="explanation",
        keeps_order="done",
        led=True,
    ),
    Kind(
        order=DriftOrder,
        right="predict",
        protocol=drifting.drift_job,
        work=DriftWork,
        keep=drifting.keep_drift,
        check=drifting.check_drift,
        keeps_order="done",
        led=True,
    ),
    Kind(
        order=ScoreOrder,
        right="predict",
        protocol=scores.open_job,
        work=ScoreWork,
        check=columns.check_prediction,
        led=True,
    ),
    Kind(
        order=CatalogOrder,
        right="align",
        protocol=catalog_job,
        work=CatalogWork,
        keep=keep_catalog,
        listed_as="align",  # what it tells has a setting of its own
    ),
    Kind(
        order=DeleteOrder,
        right="train",
        protocol=delete_job,
        work=DeleteWork,
        keep=keep_deletion,
        check=check_deletion,
        deed="delete it",
        needs_table=False,
        private=True,  # it tells nothing
        erases=True,
    ),
    # --- linear models over columns ---
    Kind(
        order=TrainLinearOrder,
        right="train",
        protocol=linear.train_job,
        work=LinearWork,
        keep=linear.keep_training,
        outcome="model",
        keeps_order="done",
        led=True,
        dealer=deal_products,
    ),
    Kind(
        order=PredictLinearOrder,
        right="predict",
        protocol=linear.predict_job,
        work=LinearWork,
        keep=linear.keep_prediction,
        check=linear.check_prediction,
        outcome="answers",
        keeps_order="done",
        led=True,
    ),
    Kind(
        order=EvaluateLinearOrder,
        right="predict",
        protocol=evaluation.evaluate_linear_job,
        work=EvaluateLinearWork,
        keep=evaluation.keep_evaluation,
        check=linear.check_prediction,
        listed_as="evaluate",
        keeps_order="done",
        led=True,
    ),
    # --- revocable forests, and encrypted splits ---
    Kind(
        order=TrainRevocableOrder,
        right="train",
        protocol=revocable.train_job,
        work=RevocableWork,
        keep=revocable.keep_training,
        check=revocable.check_training,
        with_members=True,
        outcome="model",
        keeps_order="done",
    ),
    Kind(
        order=RevokeRevocableOrder,
        right="train",
        protocol=revocable.revoke_job,
        work=RevocableWork,
        keep=leaving.keep_revocation,
        check=revocable.check_revocation,
        deed=LEAVE,
        party_orders=True,
        with_members=True,
        outcome="receipt",
        keeps_order="ended",
    ),
    Kind(
        order=KeysOrder,
        right="train",
        protocol=keys.keys_job,
        work=ProviderWork,
        keep=keys.keep_keys,
        check=keys.check_keys,
        deed="give it new keys",
        needs_table=False,
        with_members=True,
    ),
    Kind(
        order=PredictEncryptedOrder,
        right="predict",
        protocol=keys.predict_encrypted_job,
        work=ProviderWork,
        keep=keys.keep_prediction,
        check=keys.check_prediction,
        needs_table=False,
        with_members=True,
        outcome="answers",
    ),
    # --- different rows of the same columns ---
    Kind(
        order=TrainRowsOrder,
        right="train",
        protocol=rows.train_rows_job,
        work=TrainRowsWork,
        keep=rows.keep_training,
        private=True,
        outcome="model",
        keeps_order="done",
        tells_done=True,
    ),
    Kind(
        order=RevokeRowsOrder,
        right="train",
        protocol=leaving.revoke_rows_job,
        work=TrainRowsWork,
        keep=leaving.keep_rows_revocation,
        check=leaving.check_rows_revocation,
        listed_as="train-rows",  # to take a party out is to train without it
        deed=LEAVE,
        private=True,
        outcome="receipt",
        keeps_order="ended",
        tells_done=True,
    ),
    Kind(
        order=ForgetRowsOrder,
        right="train",
        protocol=forgetting_rows.forget_rows_job,
        work=ForgetRowsWork,
        keep=forgetting_rows.keep_forgetting_rows,
        check=forgetting_rows.check_forgetting_rows,
        listed_as="forget",
        deed="have it forget rows",
        party_orders=True,
        outcome="erasure",
        tells_done=True,
    ),
    Kind(
        order=PredictRowsOrder,
        right="predict",
        protocol=rows.predict_rows_job,
        work=PredictRowsWork,
        keep=rows.keep_prediction,
        check=rows.check_prediction,
        private=True,
        outcome="own answers",
        keeps_order="done",
    ),
    Kind(
        order=EvaluateRowsOrder,
        right="predict",
        protocol=pooled.evaluate_rows_job,
        work=EvaluateRowsWork,
        keep=pooled.keep_rows_evaluation,
        check=pooled.check_rows_evaluation,
        listed_as="evaluate",
        keeps_order="done",
    ),
)
"""Woodlot's own kinds."""
