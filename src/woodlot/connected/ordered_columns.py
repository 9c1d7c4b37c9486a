"""Orders over columns of parties elsewhere: what each kind of job is asked with, and who leads it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from woodlot.connected.connected_models import model_of
from woodlot.connected.forgotten_rows import ForgottenParts
from woodlot.exceptions import DataError
from woodlot.federation import GrownForest, Labels
from woodlot.protocols.core.forest_plan import ForestPlan, Task
from woodlot.protocols.core.leavers import check_hidden_leaver, check_leaver, usual_level
from woodlot.protocols.linear.linear_model import FittedLinear, LinearPlan
from woodlot.protocols.revocable.revocable_plan import RevocablePlan

if TYPE_CHECKING:
    from woodlot.federation.local_revocable import Encryption
    from woodlot.jobs.job_messages import JobFacts, ModelFacts
    from woodlot.jobs.linear.linear_orders import PredictLinearOrder, TrainLinearOrder
    from woodlot.jobs.orders import AlignOrder, Order, Part, PredictOrder, RevokeOrder, TrainOrder
    from woodlot.jobs.revocable.revocable_orders import RevokeRevocableOrder, TrainRevocableOrder
    from woodlot.service.client import Client

Lead: TypeAlias = Literal["coordinator", "holder"]
"""Whose process runs a training over columns; None in its place: the holder's, where a party can lead."""

RELAY_BYTES = 32
"""Bytes of the secret that the parties of a job have from its user, where a party leads."""


class OrderedColumns(ForgottenParts):
    """Parties elsewhere, and the orders that a user can sign for them."""

    watch: Callable[[JobFacts], None] | None = None
    """Told of all news of all jobs that are waited for."""

    def __init__(
        self,
        client: Client,
        tables: Mapping[str, str],
        align: str,
        join: str,
        helper: str | None = None,
        key_service: str | None = None,
        lead: Lead | None = None,
        server: str | None = None,
        dealer: str | None = None,
    ) -> None:
        self.client = client
        self._lead = lead
        self._server = server
        self._dealer = dealer
        self._members = (helper, key_service)
        self.parties = tuple(tables)
        self._tables = dict(tables)
        self._fields = {"method": align, "join": join}
        self._alignment: JobFacts | None = None

    @property
    def tables(self) -> dict[str, str]:
        """The name of each party's table."""
        return dict(self._tables)

    def find_labels(self, y: str, sample_weight: str | None) -> Labels:
        """Where the labels and weights are; only their holder knows whether it has such columns."""
        return Labels.at(self._locate, y, sample_weight)

    def _locate(self, column: str) -> tuple[str, str]:
        party, dot, name = column.partition(".")
        if not (dot and name) or party not in self.parties:
            raise DataError(f"{column!r} must be written party.column, with a party of {list(self.parties)}")
        return party, name

    def order_fields(self, parts: Mapping[str, Part]) -> dict[str, Any]:
        """Seal each party's part to the certificate that the coordinator has passed on."""
        return self.client.order_fields(parts)

    def run(self, order: Order, on_facts: Callable[[JobFacts], None] | None = None) -> JobFacts:
        """Sign an order of any kind, send it, and wait until it is done."""

        def heard(facts: JobFacts) -> None:
            for listener in (on_facts, self.watch):
                if listener is not None:
                    listener(facts)

        return self.client.finish(self.client.submit(order).job, heard)

    def _common(
        self,
        labels: Labels | None = None,
        tables: Mapping[str, str] | None = None,
        members: Sequence[str] = (),
        keys: str = "",
        leader: str = "",
        secret: Mapping[str, Any] = MappingProxyType({}),
        own: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """The fields of an order over columns; ``own``: more fields of some parties' parts."""
        from woodlot.jobs.orders import Part

        if self._named is not None and not any("ids" in fields for fields in own.values()):
            raise DataError(
                "rows that are named by their ids are for model.explain; to predict single rows use federation.scoring"
            )
        relay = relay_secret(leader)
        parts = {
            party: Part(
                table=table,
                label=labels.column if labels is not None and labels.holder == party else None,
                weight=labels.weight if labels is not None and labels.holder == party else None,
                keys=keys,
                **relay,
                **(secret if party == leader else {}),
                **own.get(party, {}),
            )
            for party, table in (self._tables if tables is None else tables).items()
        } | {member: Part(**relay) for member in members}
        alignment = None if self._alignment is None else self._alignment.job
        fields = self.order_fields(parts) | self._fields | {"alignment": alignment} | self._row_fields()
        return fields | ({"led_by": leader} if leader else {})

    def align_order(self) -> AlignOrder:
        """An order to find the common rows and keep them."""
        from woodlot.jobs.orders import AlignOrder

        fields = {name: value for name, value in self._common().items() if name != "subset"}
        return AlignOrder(**(fields | {"alignment": None}))

    def train_order(self, plan: ForestPlan, labels: Labels, settings: Mapping[str, Any], name: str = "") -> TrainOrder:
        """An order to grow a forest."""
        from woodlot.jobs.orders import TrainOrder

        self._require_inner()
        leader, told = self._leader_for(labels), dict(settings)
        hidden: dict[str, Any] = {}
        members: tuple[str, ...] = ()
        if plan.protection == "hidden":
            plan.check_hidden()
            self._require_holder(plan)
            hidden["server"] = self._server_among(self.parties, labels.holder)
            if self._dealer is not None:
                hidden["dealer"], members = self._dealer, (self._dealer,)
        if leader and isinstance(plan.class_weight, tuple):
            secret, told = _class_secret(plan.class_weight, settings)
            fields = self._common(labels, None, members, leader=leader, secret=secret, own=self._chosen)
            plan = replace(plan, class_weight=None)
        else:
            fields = self._common(labels, None, members, leader=leader, own=self._chosen)
        return TrainOrder(**fields, **hidden, holder=labels.holder, plan=plan, settings=json.dumps(told), name=name)

    def _server_among(self, parties: Sequence[str], holder: str) -> str:
        """The second server where these parties grow a hidden forest; the first is the label holder, which leads."""
        others = [party for party in parties if party != holder]
        if not others:
            raise DataError("protection='hidden' needs a party beside the label holder as second server; add one")
        server = self._server or others[0]
        if server == holder:
            raise DataError(
                f"{server!r} has the labels, and cannot be the second server, too; name another party of {others}"
            )
        if server not in others:
            raise DataError(
                f"{server!r} leaves, and cannot be the second server; name another party of {others}: server= of "
                "woodlot.connect, or --server on the command line"
            )
        return server

    def _require_holder(self, plan: ForestPlan | LinearPlan) -> None:
        """Refuse a hidden training that the coordinator would run: it would see what the two servers open."""
        if plan.protection == "hidden" and self._lead == "coordinator":
            raise DataError("with protection='hidden' the label holder leads; connect with lead='holder', the default")

    def _leader_for(self, labels: Labels) -> str:
        """The party that leads a training; empty: the coordinator runs it."""
        return "" if self._lead == "coordinator" else labels.holder

    def _leader_of(self, model: str) -> str:
        """The party that leads jobs about a model; empty: the coordinator runs them."""
        known, leader = self.client.knows_leader(model), self.client.leader_of(model)
        if not leader and (self._lead == "holder" or (self._lead is None and not known)):
            raise DataError(
                f"the coordinator names no leader of model {model}: nothing was ordered, for the coordinator would "
                "read it. If the model is a revocable forest, or was trained with lead='coordinator', connect with "
                "lead='coordinator' to use it (on the command line --lead coordinator)"
            )
        if leader and leader not in self.parties:
            raise DataError(
                f"{leader!r} keeps this model and leads its jobs, and is not among the parties {list(self.parties)}; "
                "add it"
            )
        return leader

    def _model_of(self, forest: GrownForest | FittedLinear) -> str:
        """The id of a fitted model, which knows since its training who leads its jobs."""
        model = model_of(forest)
        self.client.remember_leader(model, forest.leader)
        return model

    def _require_inner(self) -> None:
        if self._fields["join"] != "inner":
            raise DataError("training needs every row at every party: connect with join='inner'")

    def revoke_order(
        self, model: ModelFacts, leaver: str, level: int | None, labels: Labels
    ) -> RevokeOrder | RevokeRevocableOrder:
        """An order to take a party out of a model; the others regrow it on the training's rows.

        Where no level is named it is 1, or 3 for a forest that was grown hidden.
        """
        from woodlot.jobs.hidden_roles import named_dealer
        from woodlot.jobs.orders import RevokeOrder
        from woodlot.jobs.revocable.revocable_orders import RevokeRevocableOrder
        from woodlot.service.encrypted import key_fields

        check_leaver(model.parties, model.holder, leaver)
        level = usual_level(hidden=model.is_hidden) if level is None else level
        if model.is_hidden:
            check_hidden_leaver(model.parties, model.holder, leaver, level)
        staying = {p: table for p, table in self._tables.items() if p in model.parties and p != leaver}
        absent = [p for p in model.parties if p != leaver and p not in staying]
        if absent:
            raise DataError(f"name the tables of {absent} too: all parties that stay regrow the forest")
        helper, key_service = self._members
        keys = key_fields(self.client, model.model, helper=helper, key_service=key_service) if model.revocable else {}
        members = [keys[role] for role in ("helper", "key_service") if role in keys]
        if (dealer := named_dealer(model.dealer)) is not None:
            members.append(dealer)
        fields = self._common(labels, staying, members, leader=self._leader_of(model.model))
        fields.pop("subset", None)  # on the rows of the training
        fields |= {"alignment": model.model, "join": "inner"}
        task: Task = "classes" if model.classes else "targets"
        fields |= {"model": model.model, "leaver": leaver, "task": task}
        if model.revocable:
            exact: Literal[1, 2, 3] = 1 if level == 1 else 2 if level == 2 else 3
            return RevokeRevocableOrder(**fields, **keys, holder=model.holder, level=exact)
        if level == 2:
            raise DataError("level 2 begins a new epoch of keys: it is for revocable forests; use level 1 or 3")
        if model.is_hidden:
            fields |= {"server": self._server_among(tuple(staying), model.holder), "dealer": model.dealer}
        return RevokeOrder(**fields, level=3 if level == 3 else 1)

    def train_revocable_order(
        self,
        plan: RevocablePlan,
        labels: Labels,
        settings: Mapping[str, Any],
        encryption: Encryption | None,
        name: str = "",
    ) -> TrainRevocableOrder:
        """An order to grow a revocable forest; ``encryption``: how its splits are hidden, None for not at all."""
        from woodlot.jobs.revocable.revocable_orders import TrainRevocableOrder
        from woodlot.service.encrypted import scheme_fields

        self._require_inner()
        if self._lead == "holder":
            raise DataError("revocable forests cannot be led by the label holder; connect with lead='coordinator'")
        if labels.weight is not None:
            raise DataError("revocable forests take no weights")
        helper, key_service = self._members
        if encryption is None:
            fields = self._common(labels, own=self._chosen)
        elif helper is None or key_service is None:
            raise DataError(
                "encrypted splits need a helper and a key service: connect with helper= and key_service= (in a job "
                "file helper and key_service in the section [job]), or leave encryption out: encryption='simulated'"
            )
        else:
            fields = self._common(labels, None, (helper, key_service), own=self._chosen)
            fields |= {"helper": helper, "key_service": key_service}
            fields |= scheme_fields(encryption.scheme, encryption.bits, encryption.setting)
        return TrainRevocableOrder(**fields, holder=labels.holder, plan=plan, settings=json.dumps(settings), name=name)

    def predict_order(self, model: str, label: str | None = None, **options: Any) -> PredictOrder:
        """An order to predict; ``label``, ``"party.column"``: its party scores the answers."""
        from woodlot.jobs.orders import PredictOrder
        from woodlot.service.encrypted import keys_name

        labels = None if label is None else self.find_labels(label, None)
        keys = keys_name(self.client, model) if options.get("how") == "encrypted-splits" else ""
        return PredictOrder(
            **self._common(labels, keys=keys, leader=self._leader_of(model)),
            model=model,
            score_at=None if labels is None else labels.holder,
            **options,
        )

    def train_linear_order(
        self, plan: LinearPlan, labels: Labels, settings: Mapping[str, Any], name: str = ""
    ) -> TrainLinearOrder:
        """An order to fit a linear model."""
        from woodlot.jobs.linear.linear_orders import TrainLinearOrder

        self._require_inner()
        self._require_holder(plan)
        if plan.protection == "hidden" and self._dealer is not None:
            raise DataError(
                "the coordinator deals for linear models, not a helper: connect without dealer, or train a forest"
            )
        leader, told = self._leader_for(labels), dict(settings)
        if leader and plan.class_weight:
            secret, told = _class_secret(plan.class_weight, settings)
            fields = self._common(labels, leader=leader, secret=secret, own=self._chosen)
            plan = msgspec.structs.replace(plan, class_weight=())
        else:
            fields = self._common(labels, leader=leader, own=self._chosen)
        return TrainLinearOrder(**fields, holder=labels.holder, plan=plan, settings=json.dumps(told), name=name)

    def predict_linear_order(self, model: str, label: str | None = None, **options: Any) -> PredictLinearOrder:
        """An order to predict with a linear model; ``label``, ``"party.column"``: its party scores the answers."""
        from woodlot.jobs.linear.linear_orders import PredictLinearOrder

        labels = None if label is None else self.find_labels(label, None)
        score_at = None if labels is None else labels.holder
        fields = self._common(labels, leader=self._leader_of(model))
        return PredictLinearOrder(**fields, model=model, score_at=score_at, **options)

    def _evaluation_fields(self, model: str, labels: Labels, key: bytes) -> dict[str, Any]:
        return self._common(labels, leader=self._leader_of(model), own={labels.holder: {"key": key}})

    def _drift_fields(self, model: str, keys: dict[str, bytes]) -> dict[str, Any]:
        return self._common(leader=self._leader_of(model), own={party: {"key": key} for party, key in keys.items()})

    def _explanation_fields(self, model: str, key: bytes, ids: tuple[bytes, ...] | None) -> dict[str, Any]:
        leader = self._leader_of(model)
        named: dict[str, Any] = {} if ids is None else {"ids": ids}
        own = {party: named | ({"key": key} if party == leader else {}) for party in self.parties}
        return self._common(leader=leader, own=own)

    def _forgetting_fields(self, model: ModelFacts, labels: Labels, own: Mapping[str, Any]) -> dict[str, Any]:
        tables = {party: self._tables[party] for party in model.parties}
        return self._common(labels, tables, leader=self._leader_of(model.model), own=dict.fromkeys(tables, own))

    def _address(self) -> str:
        return self.client.address

    def _remember(self, fitted: GrownForest | FittedLinear) -> None:
        self._model_of(fitted)


def relay_secret(leader: str) -> dict[str, Any]:
    """The field of every party's part of an order that a party leads: a secret that only they have."""
    return {"relay": os.urandom(RELAY_BYTES)} if leader else {}


def _class_secret(
    weights: tuple[tuple[str, float], ...], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What only the leader is told where weights name classes, and the settings without them, which all are told."""
    secret = {"class_weight": weights, "settings": json.dumps(settings)}
    params = {name: value for name, value in settings.get("params", {}).items() if name != "class_weight"}
    return secret, {**settings, "params": params}
