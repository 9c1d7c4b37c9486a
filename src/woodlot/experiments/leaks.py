"""Known attacks on vertical forests, run against one's own job in simulation: what each role could learn.

Every attack works on the messages that its role really gets, recorded while the forest is trained and used in this
process, and on what the role has anyway: its own columns, and where it says so a few labels or values that it knows
from elsewhere. The truth is only used to mark the results.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.stats import chi2, spearmanr
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from woodlot.estimators.complete import CompleteForest
from woodlot.estimators.forest import FederatedForestClassifier
from woodlot.exceptions import DataError
from woodlot.federation import Federation, fresh_entropy
from woodlot.protocols.align import AlignParty, align
from woodlot.protocols.messages.base import Message
from woodlot.protocols.messages.sealed import SealedLeaves
from woodlot.protocols.messages.vertical import Decisions
from woodlot.protocols.part_files import COORDINATOR
from woodlot.protocols.vertical.model import CoordinatorForest
from woodlot.runtime.audit import Ledger
from woodlot.runtime.codec import encode
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.sampling import Bootstrap

LabelSetting = Literal["shared", "encrypted"]
LABEL_SETTINGS: tuple[LabelSetting, ...] = ("shared", "encrypted")
KNOWN_SHARE = 0.01
"""Share of rows whose labels or values an attacker is taken to know from elsewhere; at least `KNOWN_LEAST`."""
KNOWN_LEAST = 20
MARGIN = 0.03
"""What an attack must reach above chance to count."""
MAX_COLUMNS = 6
"""Columns of the victim that are attacked for their order."""
MAX_NODES = 400
"""Its nodes that such an attack looks at."""
TRIED_IDS = 200_000
"""Ids that the attack on hashes tries."""
MAX_ALIGNED = 500
"""Ids that are aligned for it."""
ATTACK_TREES = 50
"""Trees of forests that an attacker grows on what it knows."""


@dataclass(frozen=True)
class Finding:
    """What one attack came to.

    Attributes
    ----------
    attack, setting, role : str
        What was tried, under which setting, by whom.
    measure : str
        What the figures are.
    value : float
        What the attacker reached.
    chance : float
        What it would have reached without any message.
    leaks : bool
        Whether the messages have told more than chance.
    words : str
        The same in a sentence.

    """

    attack: str
    setting: str
    role: str
    measure: str
    value: float
    chance: float
    leaks: bool
    words: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass
class Tape:
    """All messages of a run, in order: sender, receiver, message."""

    messages: list[tuple[str, str, Message]] = field(default_factory=list)

    def record(self, sender: str, receiver: str, message: Message) -> None:
        """Take one message down."""
        self.messages.append((sender, receiver, message))

    def got_by(self, role: str) -> list[Message]:
        """What a role got from others."""
        return [message for _, receiver, message in self.messages if receiver == role]


@dataclass(frozen=True, eq=False)
class Case:
    """A table whose columns are dealt to parties, and its labels, which the first party holds.

    Attributes
    ----------
    columns : dict of str to dict of str to array
        Each party's columns.
    labels : array
        One class per row.
    ids : array or None
        Ids, for the attack on their hashes.

    """

    columns: dict[str, dict[str, NDArray[Any]]]
    labels: NDArray[Any]
    ids: NDArray[Any] | None = None

    @property
    def holder(self) -> str:
        """The party with the labels."""
        return next(iter(self.columns))

    @property
    def passive(self) -> str:
        """A party without labels: the attacker inside the federation."""
        return list(self.columns)[1]

    def matrix(self, party: str) -> NDArray[np.float64]:
        """A party's columns as numbers: categories by their place in the alphabet, missing values as the mean."""
        parts = []
        for values in self.columns[party].values():
            if values.dtype.kind in "fiub":
                numbers = values.astype(np.float64)
            else:
                numbers = np.unique(values.astype(str), return_inverse=True)[1].astype(np.float64)
            parts.append(np.where(np.isnan(numbers), np.nanmean(numbers), numbers))
        return np.column_stack(parts)

    def federation(self) -> Federation:
        """The parties in this process."""
        tables = {party: pa.table(dict(columns)) for party, columns in self.columns.items()}
        tables[self.holder] = tables[self.holder].append_column(_LABEL, pa.array(self.labels))
        return Federation.local(tables)


_LABEL = "label of the leak test"


def case_of(
    table: Any, label: str, dealing: int | Mapping[str, Sequence[str]], *, id: str | None = None, max_rows: int = 3000
) -> Case:
    """A case from a user's own Arrow table.

    Raises
    ------
    DataError
        If there are not two parties with columns, or a column is missing.

    """
    names = [name for name in table.column_names if name not in (label, id)]
    if label not in table.column_names:
        raise DataError(f"there is no column {label!r}; the columns are {table.column_names}")
    if isinstance(dealing, int):
        dealing = {f"party-{k + 1}": names[k::dealing] for k in range(dealing)}
    unknown = [c for columns in dealing.values() for c in columns if c not in names]
    if unknown:
        raise DataError(f"there are no columns {unknown} to deal; there are {names}")
    if len(dealing) < 2 or not all(dealing.values()):
        raise DataError("a leak test needs two parties or more, each with a column")
    table = table.filter(table.column(label).is_valid())
    if table.num_rows > max_rows:
        table = table.take(np.random.default_rng(0).permutation(table.num_rows)[:max_rows])

    def values(name: str) -> NDArray[Any]:
        return np.asarray(table.column(name).to_numpy(zero_copy_only=False))

    columns = {party: {name: values(name) for name in own} for party, own in dealing.items()}
    return Case(columns, values(label), None if id is None else values(id))


def made_up_case(n_rows: int = 1500, seed: int = 0) -> Case:
    """A bank and a shop, and customers who pay or do not."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(n_rows, 3))
    noise = rng.normal(size=(n_rows, 8))
    bank = {f"bank_{k}": (latent @ rng.normal(size=3) / 3 + noise[:, k]) for k in range(4)}
    shop = {f"shop_{k}": (latent @ rng.normal(size=3) / 3 + noise[:, 4 + k]) for k in range(4)}
    signal = bank["bank_0"] + shop["shop_0"] + shop["shop_1"] * bank["bank_1"] / 2
    labels = np.where(signal + rng.normal(size=n_rows) > np.quantile(signal, 0.6), "late", "paid")
    return Case({"bank": bank, "shop": shop}, labels, rng.permutation(1_000_000)[:n_rows])


def run_leak_test(
    case: Case,
    params: Mapping[str, Any] | None = None,
    settings: Iterable[LabelSetting] = LABEL_SETTINGS,
    say: Callable[[str], None] = lambda text: None,
) -> list[Finding]:
    """Train, predict and align under every setting, and attack all of it.

    Parameters
    ----------
    case : Case
        The data.
    params : mapping, optional
        Parameters of the forest, such as ``n_estimators`` and ``max_depth``.
    settings : iterable of {"shared", "encrypted"}
        How labels are shared.
    say : callable
        Told what is being done.

    Returns
    -------
    list of Finding
        By attack and setting.

    """
    chosen = {"n_estimators": 20, "random_state": 0, **(params or {})}
    findings: list[Finding] = []
    grown: FederatedForestClassifier | None = None
    for labels in settings:
        say(f"training with labels={labels!r}")
        tape, federation = Tape(), case.federation()
        federation.observer = tape.record
        model = FederatedForestClassifier(**{**chosen, "labels": labels})
        model.fit(federation, y=f"{case.holder}.{_LABEL}")
        leaf, drawn = leaves_of_rows(case, model), drawn_rows(model, len(case.labels))
        findings += label_code_attack(case, tape, labels)
        findings += leaf_attack(case, tape, labels, np.where(drawn, leaf, -1))
        if grown is None:
            grown = model
            findings += order_attack(case, model, leaf)
    if grown is not None:
        for sealed in (False, True):
            say(f"predicting, {'sealed' if sealed else 'plain'}")
            findings.append(prediction_attack(case, grown, sealed))
    say("aligning ids")
    findings += id_attack(np.arange(100_000, 100_000 + 2_000) if case.ids is None else case.ids)
    return findings


# --- what the messages of a training tell ---


def label_code_attack(case: Case, tape: Tape, setting: str) -> list[Finding]:
    """Labels from what is sent in their place: codes matched to classes by how frequent both are."""
    numbers = np.unique(case.labels, return_inverse=True)[1]
    chance = float(np.bincount(numbers).max() / len(numbers))
    found = []
    for role in (case.passive, COORDINATOR):
        codes = [
            codes
            for message in tape.got_by(role)
            if isinstance(codes := getattr(message, "labels", None), np.ndarray) and len(codes) == len(numbers)
        ]
        if codes:
            value = matched_by_size(codes[0], numbers)
            words = "each row comes with a code of its class; who knows how frequent the classes are reads the labels"
        else:
            value = chance
            words = "no message has anything readable in place of a label; guessing the largest class is all there is"
        about = ("labels from their code", f"labels={setting}", role, "labels inferred, none known")
        found.append(Finding(*about, value, chance, value > chance + MARGIN, words))
    return found


def leaf_attack(case: Case, tape: Tape, setting: str, leaf: NDArray[np.int64]) -> list[Finding]:
    """Labels from who ends in the same leaf: partitions are told to every party."""
    told = any(len(getattr(message, "flags", ())) for message in tape.got_by(case.passive))
    known, rest = known_rows(len(case.labels))
    numbers = np.unique(case.labels, return_inverse=True)[1]
    own = case.matrix(case.passive)
    largest = float(np.bincount(numbers).max() / len(numbers))
    alone = RandomForestClassifier(ATTACK_TREES, random_state=0).fit(own[known], numbers[known])
    chance = float((alone.predict(own[rest]) == numbers[rest]).mean())
    about = ("labels from leaves", f"labels={setting}", case.passive)
    measures = (f"labels inferred, {len(known)} known", "rows grouped by label, none known")
    if not told:
        words = "no partition is told to this party"
        return [
            Finding(*about, measures[0], chance, chance, False, words),
            Finding(*about, measures[1], largest, largest, False, words),
        ]
    guessed = float((vote_of_leaves(leaf, known, numbers) == numbers)[rest].mean())
    clustered = matched_at_best(clusters_of(leaf, int(numbers.max()) + 1), numbers)
    return [
        Finding(
            *about,
            measures[0],
            guessed,
            chance,
            guessed > chance + MARGIN,
            "rows of the same leaf mostly have the same label: a few known ones tell the others. Its own columns and "
            "the same labels reach the second figure. Encryption does not change who sees the partitions",
        ),
        Finding(
            *about,
            measures[1],
            clustered,
            largest,
            clustered > largest + 2 * MARGIN,
            "rows that share leaves are put into as many groups as there are classes: the figure is how many rows are "
            "right once one knows which group is which class",
        ),
    ]


def matched_by_size(groups: NDArray[Any], numbers: NDArray[np.int64]) -> float:
    """Share of rows whose class is right if the largest group is taken for the largest class, and so on."""
    sizes, counts = np.bincount(groups), np.bincount(numbers)
    guess = np.full(len(sizes), -1)
    n = min(len(sizes), len(counts))
    guess[np.argsort(-sizes, kind="stable")[:n]] = np.argsort(-counts, kind="stable")[:n]
    return float((guess[groups] == numbers).mean())


def matched_at_best(groups: NDArray[np.int64], numbers: NDArray[np.int64]) -> float:
    """Share of rows whose class is right under the best naming of the groups."""
    together = np.zeros((int(groups.max()) + 1, int(numbers.max()) + 1))
    np.add.at(together, (groups, numbers), 1.0)
    return float(together[linear_sum_assignment(-together)].sum() / len(numbers))


def vote_of_leaves(leaf: NDArray[np.int64], known: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The class of each row by the known rows that share its leaves."""
    votes = np.zeros((len(numbers), int(numbers.max()) + 1))
    for of_rows in leaf.T:
        of_leaf = np.zeros((int(leaf.max()) + 2, votes.shape[1]))
        np.add.at(of_leaf, (of_rows[known], numbers[known]), 1.0)
        of_leaf[-1] = 0  # rows that the tree has not drawn
        votes += (of_leaf / np.maximum(of_leaf.sum(axis=1, keepdims=True), 1))[of_rows]
    return np.asarray(votes.argmax(axis=1), np.int64)


def clusters_of(leaf: NDArray[np.int64], n_clusters: int) -> NDArray[np.int64]:
    """Groups of rows that share leaves, found without any label."""
    rows, trees = np.nonzero(leaf >= 0)
    shares = csr_matrix((np.ones(len(rows)), (rows, leaf[rows, trees])), shape=(len(leaf), int(leaf.max()) + 1))
    shares = shares[:, np.flatnonzero(shares.getnnz(axis=0) > 1)]
    space = TruncatedSVD(min(n_clusters + 2, shares.shape[1] - 1), random_state=0).fit_transform(shares)
    space /= np.maximum(np.linalg.norm(space, axis=1, keepdims=True), 1e-12)
    return np.asarray(KMeans(n_clusters, n_init=4, random_state=0).fit_predict(space), np.int64)


def order_attack(case: Case, model: FederatedForestClassifier, leaf: NDArray[np.int64]) -> list[Finding]:
    """The order of a party's values from the sides that its splits sent rows to."""
    victim, forest = case.holder, model.forest_.coordinator
    sides, feature = sides_at(forest, victim, leaf, MAX_NODES)
    known, rest = known_rows(len(case.labels))
    own, first = case.matrix(case.passive), int(np.searchsorted(forest.feature_party, forest.parties.index(victim)))
    with_values: list[float] = []
    before: list[float] = []
    by_code: list[float] = []
    for number, column in enumerate(case.matrix(victim).T[:MAX_COLUMNS]):
        if len(np.unique(column)) < 5:
            continue
        for features, result in ((sides, with_values), (own, before)):
            attacker = RandomForestRegressor(ATTACK_TREES, max_features=0.3, random_state=0)
            attacker.fit(features[known], column[known])
            result.append(abs(_correlation(attacker.predict(features[rest]), column[rest])))
        by_code.append(abs(_correlation(sides[:, feature == first + number].sum(axis=1), column)))
    reached, chance, coded = (float(np.mean(values or [0.0])) for values in (with_values, before, by_code))
    measure = "mean rank correlation with a column"
    return [
        Finding(
            "order of values",
            "any labels",
            case.passive,
            f"{measure}, {len(known)} values known",
            reached,
            chance,
            reached > chance + MARGIN,
            f"partitions tell on which side of {victim}'s thresholds a row lies, not by which column; a few known "
            "values turn that into an order. Its own columns reach the second figure",
        ),
        Finding(
            "order of values",
            "any labels",
            COORDINATOR,
            f"{measure}, none known",
            coded,
            0.0,
            coded > 2 * MARGIN,
            f"the coordinator knows which splits are by the same coded column of {victim}: how often a row goes right "
            "there is an order, up to direction",
        ),
    ]


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return 0.0 if np.ptp(a) == 0 or np.ptp(b) == 0 else float(spearmanr(a, b).statistic)


def known_rows(n_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that an attacker knows from elsewhere, and the others."""
    order = np.random.default_rng(1).permutation(n_rows)
    n = min(max(KNOWN_LEAST, int(KNOWN_SHARE * n_rows)), n_rows // 2)
    return order[:n], order[n:]


def leaves_of_rows(case: Case, model: FederatedForestClassifier) -> NDArray[np.int64]:
    """Place in preorder of the leaf of every row in every tree, as all partitions together tell it."""
    forest = model.forest_
    complete = CompleteForest(forest.coordinator, forest.parts)
    table = pa.table({name: values for columns in case.columns.values() for name, values in columns.items()})
    leaf = complete.apply(table, 1)
    return np.asarray(np.flatnonzero(forest.coordinator.structure.right < 0)[leaf], np.int64)


def drawn_rows(model: FederatedForestClassifier, n_rows: int) -> NDArray[np.bool_]:
    """Which rows each tree has drawn: those that its partitions tell of."""
    sampling: Bootstrap | None = model.forest_.coordinator.sampling
    trees = range(model.forest_.coordinator.structure.n_trees)
    if sampling is None or sampling.seed is None:
        return np.ones((n_rows, len(trees)), bool)
    return np.column_stack([sampling.counts(tree, n_rows) > 0 for tree in trees])


def sides_at(
    forest: CoordinatorForest, party: str, leaf: NDArray[np.int64], limit: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """For every row and some nodes of a party: -1 left, 1 right, 0 not there; and the nodes' features."""
    right, offset = forest.structure.right, forest.structure.offset
    nodes = np.flatnonzero(forest.owner == forest.parties.index(party))[:limit]
    at = leaf[:, np.searchsorted(offset, nodes, side="right") - 1]
    inside = (at >= nodes) & (at < _ends_of_subtrees(right)[nodes])
    return np.where(inside, np.where(at >= right[nodes], 1.0, -1.0), 0.0), forest.feature[nodes]


def _ends_of_subtrees(right: NDArray[np.int32]) -> NDArray[np.int64]:
    """The first node in preorder after each node's subtree."""
    until = np.arange(1, len(right) + 1, dtype=np.int64)
    for node in range(len(right) - 1, -1, -1):
        if right[node] >= 0:
            until[node] = until[right[node]]
    return until


# --- what the messages of a prediction tell ---


def prediction_attack(case: Case, model: FederatedForestClassifier, sealed: bool) -> Finding:
    """How many outcomes of a party's splits the coordinator reads from one prediction, per row and tree."""
    tape, federation = Tape(), case.federation()
    federation.observer = tape.record
    model.predict(federation, sealed=sealed)
    victim, leaf = case.passive, leaves_of_rows(case, model)
    on_path = float(np.abs(sides_at(model.forest_.coordinator, victim, leaf)[0]).sum() / leaf.size)
    got = [message for sender, _, message in tape.messages if sender == victim]
    setting, measure = f"{'sealed' if sealed else 'plain'} prediction", "split outcomes told per row and tree"
    if not sealed:
        bits = sum(64 * int(message.lengths.sum()) for message in got if isinstance(message, Decisions))
        value = bits / leaf.size
        return Finding(
            "outcomes at prediction",
            setting,
            COORDINATOR,
            measure,
            value,
            on_path,
            value > 1.05 * on_path,
            f"{victim} tells its side at every node that a row could reach by its own splits; the path alone has the "
            "second figure",
        )
    numbers = np.concatenate([m.values for m in got if isinstance(m, SealedLeaves)] or [np.zeros(0, np.uint64)])
    seen = np.bincount((numbers >> np.uint64(56)).astype(np.int64), minlength=256)
    statistic = float(((seen - seen.mean()) ** 2 / max(seen.mean(), 1e-9)).sum())
    uniform = statistic < chi2.isf(1e-6, 255)
    return Finding(
        "outcomes at prediction",
        setting,
        COORDINATOR,
        measure,
        on_path,
        on_path,
        not uniform,
        f"the coordinator learns the leaf, so the outcomes on the path; {victim}'s {len(numbers):,} numbers are "
        f"{'uniform' if uniform else 'NOT uniform'} (chi2 {statistic:.0f} of 255)",
    )


# --- what the messages of an alignment tell ---


def id_attack(ids: NDArray[Any]) -> list[Finding]:
    """Ids from what is sent in their place, by trying all that there could be."""
    if ids.dtype.kind in "iu":
        lowest = int(ids.min())
        tried: list[Any] = list(range(lowest, min(int(ids.max()) + 1, lowest + TRIED_IDS)))
    else:  # the attacker has a list of likely ones, such as customers of its own
        tried = [str(i) for i in ids]
    own: list[Any] = [i.item() if hasattr(i, "item") else str(i) for i in ids]
    start = time.perf_counter()
    by_hash = {hashlib.sha256(str(i).encode()).digest() for i in tried}
    seconds = max(time.perf_counter() - start, 1e-9)
    bare = np.mean([hashlib.sha256(str(i).encode()).digest() in by_hash for i in own])
    found = [
        Finding(
            "ids from their hashes",
            "bare hash (never used here)",
            COORDINATOR,
            "ids found",
            float(bare),
            0.0,
            bool(bare > 0),
            f"{len(tried) / seconds / 1e6:.1f} million ids tried per second: all numbers of nine digits in "
            f"{1e9 * seconds / len(tried) / 60:.0f} minutes of one core. What other systems call anonymous",
        )
    ]
    methods: tuple[Literal["keyed-hash", "psi"], ...] = ("keyed-hash", "psi")
    for method in methods:
        tape = _alignment_tape(own, method)
        # the coordinator tries every id against all bytes that it gets, hashed in the way that it knows
        sent = b"".join(encode(message) for message in tape.got_by(COORDINATOR))
        value = np.mean([hashlib.sha256(str(i).encode()).digest()[:8] in sent for i in own[:MAX_ALIGNED]])
        found.append(
            Finding(
                "ids from their hashes",
                method,
                "coordinator",
                "ids found",
                float(value),
                0.0,
                bool(value > 0),
                "ids travel under a key that the coordinator does not have: there is nothing to try them against"
                if method == "keyed-hash"
                else "parties compare ids by private set intersection: nothing derived from an id can be tried",
            )
        )
    return found


def _alignment_tape(ids: list[Any], method: Literal["keyed-hash", "psi"]) -> Tape:
    tape, secret = Tape(), secrets.token_bytes(32)
    ledger = Ledger(tape.record)
    parties = {
        name: AlignParty(
            name,
            pa.array(ids[:MAX_ALIGNED]),
            entropy=fresh_entropy(),
            lasting=fresh_entropy(),
            shared_secret=secret,
            signer=None,
            job="leak test",
        )
        for name in ("bank", "shop")
    }
    with InProcessDriver(parties, ledger=ledger) as driver:
        run(align(("bank", "shop"), method=method, join="inner"), driver, ledger=ledger)
    return tape
