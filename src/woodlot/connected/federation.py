"""A real federation: parties elsewhere, reached through a coordinator."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from woodlot.connected.connected_models import fitted_linear, grown_forest, scores_of
from woodlot.connected.ordered_columns import Lead, OrderedColumns, relay_secret
from woodlot.data.markup import html_of
from woodlot.data.tables import Table
from woodlot.exceptions import DataError, WoodlotError
from woodlot.federation import Answer, GrownForest, Labels, Route
from woodlot.federation.interface import OnProgress, ScoreHere, Settings, Shuffled
from woodlot.protocols.core.bits import unpack
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.leavers import check_leavers
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
    from woodlot.jobs.job_messages import JobFacts, ModelPart
    from woodlot.jobs.orders import Order
    from woodlot.service.client import Client


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


class ConnectedFederation(OrderedColumns):
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
        relay = relay_secret(leader)
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


def _label_elsewhere(y: Any, sample_weight: Any) -> str:
    """Party and column of labels that this side does not see; it knows of no weights either."""
    if sample_weight is not None:
        raise DataError("weights of rows are not known outside their party; score without sample_weight")
    if not isinstance(y, str):
        raise DataError("on a connected federation y names the labels, which only their party sees: y='party.column'")
    return y
