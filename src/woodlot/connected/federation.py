"""A real federation: parties elsewhere, reached through a coordinator."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.connected.connected_models import fitted_linear, grown_forest, model_of, scores_of
from woodlot.connected.forgotten_rows import ForgottenParts
from woodlot.data.markup import html_of
from woodlot.data.tables import Table
from woodlot.exceptions import DataError, WoodlotError
from woodlot.federation import Answer, GrownForest, Labels, Route
from woodlot.federation.interface import OnProgress, ScoreHere, Settings, Shuffled
from woodlot.protocols.core.bits import unpack
from woodlot.protocols.core.forest_plan import ForestPlan, Task
from woodlot.protocols.core.leavers import check_hidden_leaver, check_leaver, check_leavers, usual_level
from woodlot.protocols.core.message import Progress
from woodlot.protocols.linear.linear_model import FittedLinear, LinearPlan
from woodlot.protocols.revocable.revocable_plan import DEFAULT_SCHEME, RevocablePlan, Scheme
from woodlot.protocols.vertical.forest_messages import Wire
from woodlot.runtime.audit import Account
from woodlot.trees.predict import Vote

if TYPE_CHECKING:
    from woodlot.connected.scores import Scoring
    from woodlot.crypto.dtpkc import Setting
    from woodlot.federation.local import Federation
    from woodlot.federation.local_revocable import Encryption, RevocableGrown
    from woodlot.identity.receipts import Receipt
    from woodlot.jobs.job_messages import JobFacts, ModelFacts, ModelPart
    from woodlot.jobs.linear.linear_orders import PredictLinearOrder, TrainLinearOrder
    from woodlot.jobs.orders import AlignOrder, Order, Part, PredictOrder, RevokeOrder, TrainOrder
    from woodlot.jobs.revocable.revocable_orders import RevokeRevocableOrder, TrainRevocableOrder
    from woodlot.service.client import Client

Lead: TypeAlias = Literal["coordinator", "holder"]
"""Whose process runs a training over columns; None in its place: the holder's, where a party can lead."""

RELAY_BYTES = 32
"""Bytes of the secret that the parties of a job have from its user, where a party leads."""


def connect(
    address: str,
    identity: str | os.PathLike[str],
    *,
    tables: str | Mapping[str, str],
    parties: Sequence[str] | None = None,
    align: Literal["keyed-hash", "psi"] = "keyed-hash",
    join: Literal["inner", "outer"] = "inner",
    layout: Literal["columns", "rows"] = "columns",
    helper: str | None = None,
    key_service: str | None = None,
    lead: Lead | None = None,
    server: str | None = None,
    dealer: str | None = None,
) -> ConnectedFederation:
    """Connect to the parties of a federation through its coordinator.

    Parameters
    ----------
    address : str
        ``host:port`` of the coordinator.
    identity : path
        Folder of the user's key and certificate; see ``woodlot identity``.
    tables : str or mapping of str to str
        Which table each party uses, by the name that it has there: one name for all, or by party. Parties' operators
        tell these names; they are sealed to each party.
    parties : sequence of str, optional
        Who takes part; by default those that ``tables`` names, or all parties of the federation.
    align : {"keyed-hash", "psi"}
        How the common rows are found.
    join : {"inner", "outer"}
        The rows that all parties have, or every row of any party; "outer" is for prediction only.
    layout : {"columns", "rows"}
        Whether the parties have different columns of the same rows, which are aligned; or different rows of the same
        columns, labels among them, of which nothing is aligned.
    helper, key_service : str, optional
        The members that revocable forests need besides parties; they have no tables. Encrypted predictions are refused
        where the coordinator names others.
    lead : {"holder", "coordinator"}, optional
        Whose process runs a training over columns. "holder": the label holder, who knows the labels, runs it and keeps
        the model; the coordinator relays sealed frames and learns who takes part, sizes and times. "coordinator": it
        learns every training label and much of the values, see docs/results/leaks.md. By default the holder leads
        forests and linear models, and the coordinator runs revocable forests, which "holder" refuses. Jobs with a
        model are led by who has led its training. Unless you say "coordinator", a model is refused if only the
        coordinator says that no party leads it.
    server : str, optional
        The second server of trainings with ``protection="hidden"``: a party that works together neither with the label
        holder nor with the dealer. By default the first party that is not the label holder.
    dealer : str, optional
        The helper that deals for forests with ``protection="hidden"``, a member without tables. It works together
        neither with the label holder nor with the second server. By default the coordinator deals.

    Returns
    -------
    ConnectedFederation
        What an estimator is fitted on.

    Examples
    --------
    With a coordinator at ``address``, such as ``"coordinator.example:7443"``, and parties that are connected to it:

    >>> import woodlot as wl
    >>> with wl.connect(address, "alice/identity", tables="customers") as fed:
    ...     model = wl.FederatedForestClassifier(n_estimators=5, oob_score=True, random_state=0)
    ...     model.fit(fed, y="bank.late").oob_score_ > 0.9
    True
    """
    from woodlot.service.client import Client

    if layout not in ("columns", "rows"):
        raise ValueError(f"layout must be 'columns' or 'rows', not {layout!r}")
    if layout == "rows" and (align, join) != ("keyed-hash", "inner"):
        raise DataError("align and join are for layout='columns'; parties with the same columns join no rows")
    if lead not in ("coordinator", "holder", None):
        raise ValueError(f"lead must be 'holder', 'coordinator' or None, not {lead!r}")
    if layout == "rows" and lead == "holder":
        raise DataError(
            "lead='holder' is for layout='columns'; over rows every party has labels, and the coordinator sees sums"
        )

    client = Client(address, identity)
    try:
        return federation_at(
            client, tables=tables, parties=parties, align=align, join=join, layout=layout, helper=helper,
            key_service=key_service, lead=lead, server=server, dealer=dealer,
        )  # fmt: skip
    except BaseException:
        client.close()
        raise


def federation_at(
    client: Client,
    *,
    tables: str | Mapping[str, str],
    parties: Sequence[str] | None,
    align: str = "keyed-hash",
    join: str = "inner",
    layout: str = "columns",
    helper: str | None = None,
    key_service: str | None = None,
    lead: Lead | None = None,
    server: str | None = None,
    dealer: str | None = None,
) -> ConnectedFederation:
    """The federation of a client that is there already; other parameters as for `connect`."""
    if parties is None:
        known = client.parties() if isinstance(tables, str) else tables
        parties = tuple(party for party in known if party not in (helper, key_service, dealer))
    names = dict.fromkeys(parties, tables) if isinstance(tables, str) else dict(tables)
    if not parties or set(names) != set(parties):
        raise DataError(f"tables must name one table for each of the parties {list(parties)}, not {list(names)}")
    if server is not None and server not in parties:
        raise DataError(f"the second server {server!r} is not among the parties {list(parties)}")
    if dealer is not None and (dealer in parties or layout == "rows"):
        raise DataError(
            f"the dealer {dealer!r} must be a helper, which has no table, and the layout must be 'columns': name a "
            "helper of the federation, or leave dealer out"
        )
    chosen = {p: names[p] for p in parties}
    if layout == "rows":
        from woodlot.connected.connected_rows import ConnectedRowFederation

        return ConnectedRowFederation(client, chosen)
    return ConnectedFederation(client, chosen, align, join, helper, key_service, lead, server, dealer)


class ConnectedFederation(ForgottenParts):
    """Parties that are reached through a coordinator. Make one with `woodlot.connect`.

    Rows are those that the parties have in common, in an order of the parties' own: who may see ids (a party) finds
    them beside the answers that are delivered to it; this side does not.

    Attributes
    ----------
    parties : tuple of str
        Who takes part.
    client : Client
        The line to the coordinator.
    layout : {"columns", "rows"}
        What the parties hold of one table: different columns of the same rows, or different rows of the same columns.
    """

    ids = None
    layout: ClassVar[Literal["columns", "rows"]] = "columns"
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

    def __repr__(self) -> str:
        try:
            connected = self.client.parties()
        except WoodlotError:
            connected = {}  # to be shown must never fail
        width = max(len(p) for p in self.parties)
        rows = (
            "" if self._alignment is None else f", {'part of ' if self._rules else ''}{self._alignment.n_rows:,} rows"
        )
        lines = [f"Federation of {len(self.parties)} parties at {self.client.address}{rows}"]
        lines += [f"  {p:<{width}}  {'connected' if connected.get(p) else 'away'}" for p in self.parties]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_of(self)

    def close(self) -> None:
        """Hang up; jobs go on."""
        self.client.close()

    def __enter__(self) -> ConnectedFederation:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- rows ---

    def align(self) -> JobFacts:
        """Find the common rows now, and use them in what follows; without it every job finds them again.

        Returns
        -------
        JobFacts
            Among others ``n_rows``, and by party ``rows`` and how many of them are ``common``.
        """
        self._alignment = self.run(self.align_order())
        return self._alignment

    @property
    def alignment_job(self) -> str:
        """The job whose common rows are used; empty where every job finds them again."""
        return "" if self._alignment is None else self._alignment.job

    @property
    def n_rows(self) -> int:
        """Rows that the parties have in common; asks them the first time."""
        if self._rules:
            raise DataError("how many rows this part has, its parties tell in a job: model.forest_.coordinator.n_rows")
        facts = self._alignment or self.align()
        return int(facts.n_rows or 0)

    def find_labels(self, y: str, sample_weight: str | None) -> Labels:
        """Where the labels and weights are; only their holder knows whether it has such columns."""
        return Labels.at(self._locate, y, sample_weight)

    def _locate(self, column: str) -> tuple[str, str]:
        party, dot, name = column.partition(".")
        if not (dot and name) or party not in self.parties:
            raise DataError(f"{column!r} must be written party.column, with a party of {list(self.parties)}")
        return party, name

    # --- orders ---

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
        relay = _relay_secret(leader)
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

    # --- online scoring ---

    def scoring(self, model: str, *, vote: Vote | None = None) -> Scoring:
        """Open a forest for requests: a few rows at a time, named by their ids, answered in milliseconds.

        Each party reads its table and its part of the forest once. Parties must allow it: "score" among the
        ``protocols`` of their policy.

        Parameters
        ----------
        model : str
            The forest's id or name, such as ``forest.forest_.model``.
        vote : {"soft", "majority"}, optional
            Whether a tree answers with its leaf's values or gives one vote to the largest of them; by default as the
            forest was trained to.

        Returns
        -------
        Scoring
            To be closed, or used in a ``with`` statement.
        """
        from woodlot.connected.scores import Scoring, vote_of
        from woodlot.jobs.led.led_scores import answer_seal
        from woodlot.jobs.orders import ScoreOrder
        from woodlot.jobs.scores.score_seal import IdSeal, new_key

        facts = self.client.find_model(model)
        keys = {party: new_key() for party in self.parties if party in facts.parties}
        if not keys:
            raise DataError(f"none of these parties has a part of the model; its parties are {list(facts.parties)}")
        leader = self._leader_of(facts.model)
        relay = _relay_secret(leader)
        fields = self.order_fields({p: self.part(p, key=key, **relay) for p, key in keys.items()})
        fields |= {"led_by": leader} if leader else {}
        order = ScoreOrder(**fields, model=facts.model, vote=vote or vote_of(facts))
        self.client.await_phase(self.client.submit(order).job, "scoring")
        answers = None if order.leader is None else answer_seal(keys[order.leader], order.job, order.leader)
        seals = {p: IdSeal(key, order.job, p) for p, key in keys.items()}
        return Scoring(self.client, order.job, facts, seals, answers)

    # --- as every federation, for the estimators; see `AnyFederation` ---

    def in_folds(
        self,
        y: str,
        n_folds: int,
        seed: int = 0,
        *,
        stratify: bool = False,
        features: Any = None,
        exclude: Any = None,
    ) -> InFolds:
        """This federation as scikit-learn's X with one row for each fold."""
        self._stratum(y if stratify else None)
        labels = self.find_labels(y, None)
        chosen = self.choose_columns(features, exclude, labels)
        self._find_rows()
        chosen._label, chosen._alignment = y, self._alignment
        return FoldedFederation.of(chosen, n_folds, seed)

    def _address(self) -> str:
        return self.client.address

    def _remember(self, fitted: GrownForest | FittedLinear) -> None:
        self._model_of(fitted)

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

    def label_values(self, labels: Labels) -> None:
        """None: only their holder sees them."""

    def tables_here(self) -> list[Table]:
        """None: the tables stay with their parties."""
        return []

    def fit_forest(
        self,
        plan: ForestPlan,
        labels: Labels,
        *,
        settings: Settings,
        n_jobs: int = 1,
        device: str = "cpu",
        on_progress: OnProgress = None,
    ) -> tuple[GrownForest, Account]:
        """Have a forest grown."""
        return grown_forest(self._have_grown(self.train_order(plan, labels, settings()), on_progress))

    def fit_revocable(
        self,
        plan: RevocablePlan,
        labels: Labels,
        encryption: Encryption | None,
        *,
        settings: Settings,
        n_jobs: int = 1,
        on_progress: OnProgress = None,
    ) -> tuple[GrownForest, Account]:
        """Have a revocable forest grown and encrypted."""
        order = self.train_revocable_order(plan, labels, settings(), encryption)
        return grown_forest(self._have_grown(order, on_progress))

    def predict_encrypted(
        self,
        forest: GrownForest,
        columns: Mapping[str, NDArray[np.float64]],
        vote: Vote,
        setting: Setting = "standard",
        scheme: Scheme = DEFAULT_SCHEME,
    ) -> NDArray[np.float64]:
        """Have rows predicted that only this user reads."""
        from woodlot.service.encrypted import predict_encrypted

        helper, key_service = self._members
        model = self._model_of(forest)
        self._leader_of(model)
        return predict_encrypted(
            self.client,
            model,
            columns,
            vote=vote,
            setting=setting,
            helper=helper,
            key_service=key_service,
            scheme=scheme,
        )

    def request_rows(self, forest: RevocableGrown) -> NDArray[np.float64]:
        """Refuse: the rows stay with their parties."""
        raise DataError(
            "the rows of a connected federation stay with its parties; for an encrypted request give a table with "
            "columns called party.column"
        )

    def _have_grown(self, order: Order, on_progress: OnProgress) -> ModelPart:
        """Order a training and wait for its model."""

        def show(facts: JobFacts) -> None:
            if on_progress is not None and (facts.phase or facts.waits):
                on_progress(Progress(facts.done, facts.total, facts.waits or facts.note, facts.phase))

        self.run(order, show)
        return self.client.model(order.job)

    def take_out(
        self,
        forest: GrownForest,
        labels: Labels,
        leavers: Sequence[str],
        level: int | None,
        *,
        here: Callable[[Federation], tuple[Receipt, ...]],
        keep: Callable[[GrownForest, str, Receipt], None],
    ) -> tuple[Receipt, ...]:
        """Have parties leave a forest, one at a time."""
        check_leavers(forest.coordinator.parties, None, leavers)
        receipts = []
        for leaver in leavers:
            facts = self.client.model(self._model_of(forest)).facts
            done = self.run(self.revoke_order(facts, leaver, level, labels))
            forest, receipt = grown_forest(self.client.model(done.job))[0], self.client.receipt(done.job)
            keep(forest, leaver, receipt)
            receipts.append(receipt)
        return tuple(receipts)

    def present(self, forest: GrownForest) -> list[str]:
        """The parties here that have a part of the forest."""
        return [p for p in self.parties if p in forest.coordinator.parties]

    def predict(
        self,
        forest: GrownForest,
        method: Route,
        wire: Wire,
        vote: Vote,
        *,
        shuffled: Shuffled = None,
        n_jobs: int = 1,
    ) -> tuple[Answer, Account]:
        """Have rows predicted."""
        order = self.predict_order(self._model_of(forest), how=method, wire=wire, vote=vote, shuffled=shuffled)
        return self._answers(order)

    predict_revocable = predict

    def _answers(self, order: Order) -> tuple[Answer, Account]:
        """Order a prediction and wait for its answers."""
        self.run(order)
        reply = self.client.predictions(order.job)
        uncertain: NDArray[np.bool_] = unpack(reply.uncertain, len(reply.outputs), "uncertain rows").astype(bool)
        return (np.array(reply.outputs), uncertain), Account.from_json(reply.disclosure, reply.cost)

    def score(
        self,
        forest: GrownForest,
        y: Any,
        sample_weight: Any,
        here: ScoreHere,
        *,
        vote: Vote,
        method: Route,
        shuffled: Shuffled = None,
    ) -> float:
        """Have the party that has the labels score."""
        label, model = _label_elsewhere(y, sample_weight), self._model_of(forest)
        order = self.predict_order(model, label, how=method, vote=vote, shuffled=shuffled, give_answers=False)
        return self._told_score(order)

    def _told_score(self, order: Order) -> float:
        facts = self.run(order)
        return float("nan") if facts.score is None else facts.score

    # --- linear models ---

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

    def fit_linear(
        self, plan: LinearPlan, labels: Labels, *, settings: Settings, on_progress: OnProgress = None
    ) -> tuple[FittedLinear, Account]:
        """Have a linear model fitted."""
        return fitted_linear(self._have_grown(self.train_linear_order(plan, labels, settings()), on_progress))

    def predict_linear(self, fitted: FittedLinear) -> tuple[Answer, Account]:
        """Have rows predicted; probabilities of classes come back, which become scores again."""
        (outputs, uncertain), account = self._answers(self.predict_linear_order(self._model_of(fitted)))
        return (scores_of(outputs) if fitted.coordinator.classes else outputs, uncertain), account

    def score_linear(self, fitted: FittedLinear, y: Any, sample_weight: Any, here: ScoreHere) -> float:
        """Have the party that has the labels score."""
        label = _label_elsewhere(y, sample_weight)
        return self._told_score(self.predict_linear_order(self._model_of(fitted), label, give_answers=False))


class InFolds(ConnectedFederation):
    """A connected federation as scikit-learn's X: one row for each fold of its rows.

    ``_folds`` has the rows of all folds but one, and of that one; empty where these are some of the folds only.
    """

    _folds: Sequence[tuple[ConnectedFederation, ConnectedFederation]] = ()
    _n_folds = 0

    @classmethod
    def of(cls, federation: ConnectedFederation, n_folds: int, seed: int, stratify: str | None = None) -> Self:
        """The same parties and rows, in folds."""
        folded = cls._some(federation, n_folds)
        folded._folds = federation.folds(n_folds, seed, stratify)
        return folded

    @classmethod
    def _some(cls, federation: ConnectedFederation, n_folds: int) -> Self:
        """Rows that are so many folds."""
        some = cls.__new__(cls)
        some.__dict__.update(federation.__dict__)
        some._n_folds = n_folds
        return some

    def __len__(self) -> int:
        return self._n_folds

    @property
    def shape(self) -> tuple[int, int]:
        """The number of folds."""
        return len(self), 1

    def __getitem__(self, key: Any) -> Self:
        """The rows of one fold, or of all folds but one."""
        folds = np.arange(len(self._folds))[key[0] if isinstance(key, tuple) else key].tolist()
        if len(folds) == 1:
            return self._some(self._folds[folds[0]][1], 1)
        (left_out,) = set(range(len(self._folds))) - set(folds)
        return self._some(self._folds[left_out][0], len(folds))


class FoldedFederation(InFolds):
    """Folds of the rows that parties have in common."""


def _relay_secret(leader: str) -> dict[str, Any]:
    """The field of every party's part of an order that a party leads: a secret that only they have."""
    return {"relay": os.urandom(RELAY_BYTES)} if leader else {}


def _class_secret(
    weights: tuple[tuple[str, float], ...], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What only the leader is told where weights name classes, and the settings without them, which all are told."""
    secret = {"class_weight": weights, "settings": json.dumps(settings)}
    params = {name: value for name, value in settings.get("params", {}).items() if name != "class_weight"}
    return secret, {**settings, "params": params}


def _label_elsewhere(y: Any, sample_weight: Any) -> str:
    """Party and column of labels that this side does not see; it knows of no weights either."""
    if sample_weight is not None:
        raise DataError("weights of rows are not known outside their party; score without sample_weight")
    if not isinstance(y, str):
        raise DataError("on a connected federation y names the labels, which only their party sees: y='party.column'")
    return y
