"""What a party lets others do with its data: checked at the party, whatever the coordinator says.

The refusals travel to whoever gave the order. They name the setting that forbids it, and nothing of the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

import msgspec

from woodlot.exceptions import ConfigError, PolicyError
from woodlot.jobs.kind import known
from woodlot.jobs.signers import is_signing_party

if TYPE_CHECKING:  # a configuration is read before the numerical libraries are loaded
    from woodlot.protocols.core.forest_plan import ForestPlan

RowMethod = Literal["local", "collaborative", "extra-trees", "lossless", "private"]
"""How a forest over rows can be grown: the tags of `woodlot.protocols.rows.methods`."""

WireForm = Literal["sealed", "decisions", "leaves", "ranks", "classical", "encrypted-splits"]
"""How a party's answers to a prediction over columns may travel, from the one that tells least on."""

Protection = Literal["open", "hidden"]
"""What parties may learn while a forest over columns grows: see `ForestPlan`."""

Lead = Literal["coordinator", "holder"]
"""Who can run jobs over columns."""

EVERYBODY = "*"
"""Stands for every user, and where answers go for every party, whose certificate the federation has signed."""

UNLIMITED: Literal["unlimited"] = "unlimited"
"""What a limit says where there is none: in a file that has to be written."""

Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=0)] | Literal["unlimited"]
"""How often something may be done."""

Bins: TypeAlias = Annotated[int, msgspec.Meta(ge=2)] | Literal["unlimited"]
"""Into how many bins columns may be put; "unlimited" lets every value be told apart."""

WRITTEN: dict[str, tuple[str, str]] = {
    "min_samples_leaf": ("20", "the smallest leaf that a training may ask for, in rows"),
    "min_rows": ("1000", "the fewest common rows that this party takes part with"),
    "wire_forms": (
        '["sealed"]',
        'how predictions may travel: "sealed", "decisions", "leaves", "classical" and "encrypted-splits" (the '
        'coordinator sees which way rows go), "ranks" (and the order of all values)',
    ),
    "predictions_per_day": ("10_000", 'rows predicted per day, for all users together; or "unlimited"'),
    "trainings_per_day": ("5", 'trainings per day from each label; or "unlimited"'),
    "receive": ("[]", 'who may receive predictions: users and parties by name, such as ["alice", "bank"]'),
}
"""The settings that protect, which a file must have: what to write if you do not know, and what it means."""

WRITTEN_FOR: dict[str, dict[str, tuple[str, str]]] = {
    "evaluate": {
        "min_evaluation_rows": ("1000", "the fewest rows that an evaluation may be of"),
        "evaluations_per_day": ("50", 'evaluations per day with each label; or "unlimited"'),
        "round_counts": ("10", "counts in evaluations are rounded to multiples of this; 1: they are exact"),
    },
    "explain": {
        "explains": (
            '"party"',
            'what explanations may show: "none", "party" (its part of an answer), "columns" (by name), or "values"',
        ),
        "explanations_per_day": ("100", 'rows explained per day, for all users together; or "unlimited"'),
    },
}
"""The same for what ``protocols`` lists: settings that a file must have which allows this kind of job."""

Explains = Literal["none", "party", "columns", "values"]
"""What explanations may show of a party: those of `woodlot.protocols.vertical.explain_messages`."""

CatalogFact = Literal["names", "types", "missing", "rows"]
"""What a party may tell of its columns."""

_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section ``[policy]`` of a party's configuration.

    The defaults are for code that builds a policy. In a file those that protect must be written: see `WRITTEN`.

    Attributes
    ----------
    protocols : tuple of {"align", "train", "predict", "train-linear", "predict-linear", "train-rows", ...}
        What may be ordered at all. By default not what makes whole models of this party's rows ("train-rows"): their
        thresholds are everybody's to see; nor linear models ("train-linear"), which show sums of its columns, or
        labels by their residuals; nor "score", by which a user names single rows by their ids.
    train, predict : tuple of str
        Users who may order it, of rows too; ``"*"`` is everybody. Whoever may do one of them may also align; who may
        train may also have keys made, and have parties leave.
    min_rows : int
        The fewest common rows that this party takes part with; where rows are its own, the fewest of these.
    min_samples_leaf : int
        The smallest leaf that a training may ask for.
    min_cell : int or None
        The smallest ``min_cell`` that a forest over columns may ask for; of a hidden training 20 at least. None: what
        ``min_cell="auto"`` comes to in a hidden training, and 0 in an open one.
    min_difference : int or None
        The fewest rows by which hidden trainings on one table may differ: exact counts are opened in each, and the
        difference of two of them tells of the rows that only one of them has. None: as many as a cell has
        (`min_cell`); 1: any.
    max_bins : int or "unlimited"
        The largest ``max_bins`` that a forest over columns may ask for. How the values of one bin are ordered is never
        told.
    trees : int or "unlimited"
        The most trees of one forest: each tells other parties more of this party's values.
    methods : tuple of {"local", "collaborative", "extra-trees", "lossless", "private"}
        How forests over rows may be grown.
    plain_sums : bool
        Whether a training over rows may show the coordinator this party's numbers where only a sum is needed.
    allow_two : bool
        Whether this party adds its numbers to those of one other party alone, who then knows them.
    labels_to_coordinator : bool
        Whether revocable forests may be grown from this party's labels: the coordinator then gets them in clear.
    protection : {"open", "hidden"}
        How this party's tables may take part in forests and linear models over columns. "open": also where all parties
        are sent which row goes where, or what is left of labels. "hidden": only on secret shares, see
        docs/how-to/protection.md.
    lead : tuple of {"coordinator", "holder"}
        Who may run jobs over columns: the party that leads, which is the label holder of the training, or the
        coordinator. Who runs them sees offers, partitions and decisions of this party. Trainings of revocable forests
        are run by the coordinator where `protocols` lists them; other jobs with these forests need "coordinator" here.
    share_model : bool
        Whether the coordinator may keep this party's part of a model.
    wire_forms : tuple of {"sealed", "decisions", "leaves", "ranks", "classical", "encrypted-splits"}
        How predictions over columns may travel. With "sealed" the coordinator learns leaves, and no outcome of a split;
        with "ranks" the order of all values. With "classical" and "encrypted-splits" other parties also learn which
        rows reach their nodes. Out-of-bag scores need "decisions".
    weak_keys : bool
        Whether splits may be encrypted under keys of less than 2048 bits, as in the paper or in tests.
    helpers, key_services : tuple of str
        Whom this party takes as helper and as key service of encrypted splits, by the names in their certificates.
        Together they can read the splits, so an order that names others is refused. A helper that deals for a hidden
        training must be listed, too: with one of the two servers it could read everything.
    predictions_per_day : int or "unlimited"
        Rows that are predicted in one day (UTC), for all users together.
    trainings_per_day : int or "unlimited"
        Trainings in one day (UTC) from each label of this party, for all users together. A revocation that grows trees
        again is one.
    min_evaluation_rows : int
        The fewest rows that an evaluation with a label of this party may be of, and by which evaluations may differ.
    evaluations_per_day : int or "unlimited"
        Evaluations in one day (UTC) with each label of this party, for all users together.
    round_counts : int
        Counts in the report of an evaluation are rounded to multiples of this, and metrics likewise; 1: they are exact.
    explains : {"none", "party", "columns", "values"}
        What explanations may show of this party: nothing, so that it takes part in none; its part of each answer; the
        parts of its columns, by their names; or these with the rows' values. In each case but the first the leader
        learns which way every row that is explained goes at all of this party's nodes.
    explanations_per_day : int or "unlimited"
        Rows that are explained in one day (UTC), for all users together. They count as predictions, too.
    own_evaluations : bool
        Whether an evaluation over rows tells the user figures of this party alone, beside those of all parties
        together.
    catalog : tuple of {"names", "types", "missing", "rows"}
        What users who may train or predict are told of the columns that this party offers to learn from: how they are
        called, whether they are numbers or categories, and which share of the rows has no value; and how many rows its
        table has. Empty: nothing.
    receive : tuple of str
        Users and parties who may get predictions in which this party takes part; ``"*"`` is everybody. The party itself
        always may.
    approve : tuple of str
        Kinds of job, by the names in `protocols`, that wait until the owner of the data allows each order with
        ``woodlot approvals``; ``"*"`` is every kind. Empty: what the other settings allow is done at once.
    approved_users : tuple of str
        Users whose orders need no approval.
    approval_days : int
        After how many days without a decision an order is refused, and after how many an approval ends that no job has
        used.

    """

    protocols: tuple[str, ...] = ("align", "train", "predict", "revoke", "delete")
    train: tuple[str, ...] = ()
    predict: tuple[str, ...] = ()
    min_rows: _AtLeastOne = 1
    min_samples_leaf: _AtLeastOne = 1
    min_cell: Annotated[int, msgspec.Meta(ge=0)] | None = None
    min_difference: _AtLeastOne | None = None
    max_bins: Bins = UNLIMITED
    trees: Limit = UNLIMITED
    methods: tuple[RowMethod, ...] = get_args(RowMethod)
    plain_sums: bool = False
    allow_two: bool = False
    labels_to_coordinator: bool = False
    protection: Literal["open", "hidden"] = "open"
    lead: tuple[Lead, ...] = ("holder",)
    share_model: bool = False
    wire_forms: tuple[WireForm, ...] = get_args(WireForm)
    weak_keys: bool = False
    helpers: tuple[str, ...] = ()
    key_services: tuple[str, ...] = ()
    predictions_per_day: Limit = UNLIMITED
    trainings_per_day: Limit = UNLIMITED
    min_evaluation_rows: _AtLeastOne = 1
    evaluations_per_day: Limit = UNLIMITED
    round_counts: _AtLeastOne = 1
    explains: Explains = "none"
    explanations_per_day: Limit = UNLIMITED
    own_evaluations: bool = False
    catalog: tuple[CatalogFact, ...] = ()
    receive: tuple[str, ...] = ()
    approve: tuple[str, ...] = ()
    approved_users: tuple[str, ...] = ()
    approval_days: Annotated[int, msgspec.Meta(ge=1, le=30)] = 7

    def check_order(self, kind: str, user: str) -> None:
        """Refuse a user's order.

        Parameters
        ----------
        kind : str
            What is ordered: the name of a kind.
        user : str
            The name in the certificate of whoever gave the order.

        Raises
        ------
        PolicyError
            The message says which line of the configuration would allow it.

        """
        kinds = known()
        if kind not in kinds:
            raise PolicyError(f"this party knows no order {kind!r}; it knows {', '.join(kinds)}")
        kind, right, party_orders = kinds[kind].listed, kinds[kind].right, kinds[kind].party_orders
        if kind not in self.protocols:
            raise PolicyError(
                f"this party does not {kind}: the setting protocols in the section [policy] of its configuration does "
                f"not list {kind!r}; its operator can add it there"
            )
        allowed = {"train": self.train, "predict": self.predict, "align": self.train + self.predict}[right]
        if user in allowed or EVERYBODY in allowed or (party_orders and is_signing_party(user)):
            return
        setting = "train" if right == "align" else right
        name = msgspec.json.encode(user).decode()  # as TOML writes it
        raise PolicyError(
            f"this party allows no user to {kind}; its operator can add the line {setting} = [{name}] to the section "
            "[policy] of its configuration"
            if not allowed
            else f"this party does not let {user!r} {kind}; its operator can add {name} to the setting {setting} in "
            "the section [policy] of its configuration"
        )

    def needs_approval(self, kind: str, user: str) -> bool:
        """Whether an order of a kind, by its name, waits until the owner of the data allows it."""
        return user not in self.approved_users and bool({known()[kind].listed, EVERYBODY} & set(self.approve))

    def lists(self, user: str) -> bool:
        """Whether a user may order anything here."""
        return bool({user, EVERYBODY} & {*self.train, *self.predict})

    def check_receivers(self, names: Iterable[str]) -> None:
        """Refuse to take part where somebody would get predictions who may not."""
        for name in names:
            if name not in self.receive and EVERYBODY not in self.receive:
                raise PolicyError(
                    f"this party does not let {name!r} receive predictions; its operator can add "
                    f"{msgspec.json.encode(name).decode()} to the setting receive in the section [policy] of its "
                    "configuration"
                )

    def check_lead(self, leader: str | None) -> None:
        """Refuse a job that is run by whom this party does not let run it."""
        lead: Lead = "coordinator" if leader is None else "holder"
        if lead not in self.lead:
            who = "the coordinator" if leader is None else f"{leader!r}"
            raise PolicyError(
                f"this party does not let {who} run jobs over columns: the setting lead in the section [policy] of its "
                f"configuration does not list {lead!r}; order with another lead, or its operator can add it there"
            )

    def check_rows(self, n: int, what: str = "common rows") -> None:
        """Refuse to work on fewer rows than the policy allows."""
        if n < self.min_rows:
            raise PolicyError(f"there are fewer {what} than this party's policy asks for (min_rows = {self.min_rows})")

    @property
    def fewest_told(self) -> int:
        """The fewest rows that reports together may tell of: as many as one of them must be of."""
        return max(self.min_rows, self.min_evaluation_rows)

    def check_evaluation(self, n: int) -> None:
        """Refuse an evaluation of fewer rows than the policy allows."""
        if n < self.min_evaluation_rows:
            raise PolicyError(
                f"an evaluation with a label of this party must be of {self.min_evaluation_rows:,} rows or more "
                "(min_evaluation_rows), and there are fewer; hold more rows out, or take fewer folds"
            )

    def check_explains(self) -> None:
        """Refuse explanations, unless the policy lets them show something."""
        if self.explains == "none":
            raise PolicyError(
                'this party takes part in no explanations (explains = "none" in the section [policy] of its '
                'configuration); its operator can set "party", "columns" or "values"'
            )
        if self.protection == "hidden":
            raise PolicyError(
                'this party takes part in hidden trainings only (protection = "hidden" in the section [policy] of its '
                "configuration), and an explanation tells the leader which way rows go"
            )

    def check_named_rows(self) -> None:
        """Refuse rows that a user names by their ids, unless users may do so to score them."""
        if "score" not in self.protocols:
            raise PolicyError(
                "this party does not let users name single rows by their ids: the setting protocols in the section "
                "[policy] of its configuration does not list 'score'; its operator can add it there"
            )
        self.check_single_rows()

    def check_protection(self, protection: str) -> None:
        """Refuse open trainings over columns, where the policy takes hidden ones only."""
        if self.protection == "hidden" and protection != "hidden":
            raise PolicyError(
                'this party takes part in hidden trainings only (protection = "hidden" in the section [policy] of its '
                "configuration): in an open one all parties are sent which row goes where, or what is left of labels. "
                "Train with protection='hidden' and lead='holder'"
            )

    def check_labels_given(self) -> None:
        """Refuse to send labels to the coordinator, unless the policy says so."""
        if not self.labels_to_coordinator:
            raise PolicyError(
                "a revocable forest is grown by the coordinator, who would get the labels of this party in clear; its "
                "operator can allow that with labels_to_coordinator = true in the section [policy] of its configuration"
            )

    def check_wire_form(self, form: str) -> None:
        """Refuse predictions whose answers would travel in a form that the policy does not list."""
        if form not in self.wire_forms:
            raise PolicyError(
                f"this party does not answer predictions in the form {form!r}: the setting wire_forms in the section "
                f"[policy] of its configuration allows {', '.join(self.wire_forms) or 'none'}. Sealed ones are ordered "
                "with sealed=True, or --method sealed on the command line"
            )

    def check_single_rows(self) -> None:
        """Refuse to answer for single rows, where the policy asks for many."""
        if self.min_rows > 1:
            raise PolicyError(
                f"the order asks for single rows, and this party takes part with {self.min_rows} or more "
                "(min_rows); use the common rows instead"
            )

    def check_keys(self, setting: str) -> None:
        """Refuse keys that are too short for use."""
        if setting != "standard" and not self.weak_keys:
            raise PolicyError(
                f"keys of the {setting} setting are too short for use; this member's operator can allow them with "
                "weak_keys = true in the section [policy] of its configuration"
            )

    def check_members(self, helper: str, key_service: str) -> None:
        """Refuse a helper or key service that this party does not know as such: they could read its splits."""
        for name, trusted, setting in (
            (helper, self.helpers, "helpers"),
            (key_service, self.key_services, "key_services"),
        ):
            if name not in trusted:
                raise PolicyError(
                    f"this party does not trust {name!r} with its encrypted splits; its operator can add "
                    f"{msgspec.json.encode(name).decode()} to the setting {setting} in the section [policy] of its "
                    "configuration"
                )

    def check_dealer(self, dealer: str | None) -> None:
        """Refuse a helper as the dealer of a hidden training that this party does not know as such."""
        if dealer is not None and dealer not in self.helpers:
            raise PolicyError(
                f"this party does not trust {dealer!r} to deal for hidden trainings; its operator can add "
                f"{msgspec.json.encode(dealer).decode()} to the setting helpers in the section [policy] of its "
                "configuration"
            )

    def check_leaf(self, min_samples_leaf: int) -> None:
        """Refuse to grow leaves that are smaller than the policy allows."""
        if min_samples_leaf < self.min_samples_leaf:
            raise PolicyError(
                f"leaves of {min_samples_leaf} rows are too small for this party's policy; "
                f"train with min_samples_leaf={self.min_samples_leaf} or more"
            )

    def check_plan(self, plan: ForestPlan) -> None:
        """Refuse a forest over columns that tells more of values than the policy allows."""
        self.check_trees(plan.n_estimators)
        if self.max_bins != UNLIMITED and (plan.max_bins is None or plan.max_bins > self.max_bins):
            raise PolicyError(
                f"{plan.max_bins or 'unlimited'} bins tell values more finely than this party's policy allows; train "
                f"a federated forest with max_bins={self.max_bins} or less"
            )
        if plan.min_cell != "auto":  # otherwise it follows from the number of common rows, see check_cells
            _check_cell(plan.min_cell, max(self.min_cell or 0, plan.fewest_in_cell))

    def check_cells(self, plan: ForestPlan, n_rows: int) -> None:
        """Refuse cells of fewer rows than the policy allows, now that the number of common rows is known."""
        least = plan.usual_in_cell(n_rows) if self.min_cell is None else self.min_cell
        _check_cell(plan.cell(n_rows), max(least, plan.fewest_in_cell))

    def check_trees(self, n_trees: int) -> None:
        """Refuse a forest of more trees than the policy allows."""
        if self.trees != UNLIMITED and n_trees > self.trees:
            raise PolicyError(
                f"{n_trees:,} trees are more than this party's policy allows; train with n_estimators={self.trees} or "
                "less"
            )

    def check_method(self, method: str) -> None:
        """Refuse a way of growing forests over rows."""
        if method not in self.methods:
            raise PolicyError(
                f"this party does not grow forests by the method {method!r}; the setting methods in the section "
                f"[policy] of its configuration allows {', '.join(self.methods) or 'none'}"
            )

    def check_sums(self, *, plain: bool, two: bool) -> None:
        """Refuse sums that tell more of this party's numbers than the policy allows."""
        if plain and not self.plain_sums:
            raise PolicyError(
                "this party does not show its numbers where a sum is enough: train with sums='secure', or let its "
                "operator set plain_sums = true in the section [policy] of its configuration"
            )
        if two and not self.allow_two:
            raise PolicyError(
                "this party does not add its numbers to those of one other party alone, who would learn them: train "
                "with three parties or more, or let its operator set allow_two = true in the section [policy] of its "
                "configuration"
            )


def _check_cell(min_cell: int, least: int) -> None:
    if min_cell < least:
        raise PolicyError(
            f"cells of {min_cell} rows are too small for this party's policy; train a federated forest with "
            f"min_cell={least} or more"
        )


def refuse_unknown(policy: Policy, origin: str) -> None:
    """Refuse a file that lists a kind that does not exist; other packages can add kinds, so it is looked up."""
    names = dict.fromkeys(kind.listed for kind in known().values())
    for setting, listed in (("protocols", policy.protocols), ("approve", policy.approve)):
        for place, name in enumerate(listed):
            if name not in names and (setting, name) != ("approve", EVERYBODY):
                known_ones = ", ".join(map(repr, names))
                raise ConfigError(f"{origin}: policy.{setting}[{place}]: {name!r} is not one of {known_ones}")


def refuse_retired(policy: object, origin: str) -> None:
    """Refuse a line that other lines have replaced, and name them."""
    if isinstance(policy, Mapping) and "labels" in policy:
        raise ConfigError(
            f'{origin}: there is no setting policy.labels any more. In place of labels = "encrypted" write protection '
            '= "hidden", in place of labels = "coordinator" labels_to_coordinator = true; labels = "shared" needs no '
            "line. The columns that may be labels are named in [tables.NAME]"
        )


def refuse_unwritten(policy: Mapping[str, Any], origin: str) -> None:
    """Refuse a party's file that leaves out a setting that protects.

    Parameters
    ----------
    policy : mapping
        The section ``[policy]`` as TOML has it.
    origin : str
        What errors call the file.

    Raises
    ------
    ConfigError
        The message has a line to add for each of them.

    """
    listed = policy.get("protocols", ())
    needed = WRITTEN | {
        name: advice
        for kind, settings in WRITTEN_FOR.items()
        if isinstance(listed, list | tuple) and kind in listed
        for name, advice in settings.items()
    }
    missing = {name: advice for name, advice in needed.items() if name not in policy}
    if not missing:
        return
    settings = {f"{name} = {value}": meaning for name, (value, meaning) in missing.items()}
    width = max(map(len, settings))
    lines = [f"  {setting:<{width}}  # {meaning}" for setting, meaning in settings.items()]
    raise ConfigError(
        f"{origin}: the section [policy] does not say {', '.join(missing)}; a party starts only when all of them are "
        "written, since they protect its data. Add these lines, with values of your own:\n" + "\n".join(lines)
    )
