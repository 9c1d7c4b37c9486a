"""Rows that parties elsewhere forget: their ids are sealed to the parties, and the leader's receipt comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from woodlot.connected.drifted_rows import DriftedParts
from woodlot.data.ids import canonical_ids
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.federation import GrownForest, Labels
from woodlot.federation.named_rows import ids_by_client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from woodlot.identity.erasure import ErasureReceipt
    from woodlot.jobs.forget.forget_orders import ForgetOrder
    from woodlot.jobs.job_messages import ModelFacts


class ForgottenParts(DriftedParts):
    """Has rows forgotten."""

    def forget_order(self, model: ModelFacts, ids: Any, labels: Labels) -> tuple[ForgetOrder, bytes]:
        """An order to take rows out of a model; and the key of their ids in the receipt.

        Parameters
        ----------
        model : ModelFacts
            The forest.
        ids : list, array or column
            Ids of up to 10,000 rows, none twice: whole numbers or text, as in the parties' tables.
        labels : Labels
            Where the labels and weights of the training are.
        """
        from woodlot.identity.erasure import fresh_key
        from woodlot.jobs.forget.forget_jobs import check_model
        from woodlot.jobs.forget.forget_orders import MAX_FORGOTTEN, ForgetOrder

        check_model(model, linear=model.is_linear)
        values = tuple(canonical_ids(ids, "the list of ids").values)
        if not 1 <= len(values) <= MAX_FORGOTTEN:
            raise DataError(f"give the ids of 1 to {MAX_FORGOTTEN:,} rows, not of {len(values):,}")
        absent = sorted(set(model.parties) - set(self.tables))
        if absent:
            raise DataError(f"name the tables of {absent} too: all parties of the model grow it without the rows")
        key = fresh_key()
        fields = self._forgetting_fields(model, labels, {"ids": values, "key": key})
        fields.pop("subset", None)  # of the rows of the training
        fields |= {"alignment": model.model, "join": "inner", "model": model.model}
        return ForgetOrder(**fields), key

    def _forgetting_fields(self, model: ModelFacts, labels: Labels, own: Mapping[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def forget_elsewhere(
        self, forest: GrownForest, labels: Labels, ids: Any, *, identity: Any, prove: bool
    ) -> tuple[GrownForest, ErasureReceipt]:
        """Have rows forgotten; returns the forest without them, and the receipt that all parties have signed."""
        from woodlot.connected.connected_models import grown_forest, model_of

        if identity is not None or prove:
            raise DataError(
                "identity and prove are for parties in this process: between organisations all parties sign the "
                "receipt, and the forest is grown without the rows in any case"
            )
        self._remember(forest)
        order, key = self.forget_order(self.client.model(model_of(forest)).facts, ids, labels)
        self.run(order)
        receipt = self.client.erasure(order.job, key)
        check_named(receipt, ids)
        return grown_forest(self.client.model(order.job))[0], receipt


def check_named(receipt: ErasureReceipt, ids: Any, parties: Sequence[str] = ("",)) -> None:
    """Refuse a receipt that is about other ids than were ordered, of all parties or by party."""
    from woodlot.identity.erasure import digests_of

    asked = {id for own in ids_by_client(ids, parties).values() for id in own}
    if receipt.statement.ids != digests_of(tuple(asked), receipt.key):
        raise RemoteProtocolError("the receipt is about other ids than those that were ordered")
