"""FRF-Test (Protocols 6 and 7 of the paper): predict rows whose columns lie at the parties, by the encrypted splits.

All trees and rows advance one level per exchange::

    coordinator -> party    which rows stand at which of the party's nodes; of nodes that are new, the encrypted split
    party -> coordinator    one bit per row and node: which way the row goes

A party holds both the value and the key of the split, so it compares them itself: neither the helper nor the key
service takes part. Messages tell what the classical prediction of the vertical forest tells (`vertical.predict`), and
no more. What is new is that the party opens the coordinator's copy of every split that is used, so the answers are
those of the forest that encrypted predictions use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.dtpkc import WeakKey, scale
from woodlot.crypto.encoding import DEFAULT_DIGITS, Encoding
from woodlot.exceptions import CiphertextError, DataError, EpochError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.agreement import named
from woodlot.protocols.core.forest_parts import PartyForest, splitting_parties
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.epoch_keys import EpochKeys, bytes_number, check_tag
from woodlot.protocols.revocable.provider import codes_of
from woodlot.protocols.revocable.revocable_keys import CoordinatorKeys, present_keys
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable
from woodlot.protocols.revocable.revocable_predict import check_forest
from woodlot.protocols.revocable.split_list import made_facts, made_key
from woodlot.trees.predict import Vote, outputs_from_leaves
from woodlot.trees.ranks import Columns
from woodlot.trees.stepwise import NodeByNode, Paths, answer_questions

PHASE = "test"


def predict_own_rows(
    forest: CoordinatorRevocable, keys: CoordinatorKeys, present: Collection[str], n_rows: int, vote: Vote
) -> Generator[Round, dict[str, Message], tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """Run FRF-Test at the coordinator.

    Parameters
    ----------
    forest : CoordinatorRevocable
        With encrypted splits of the present epoch.
    keys : CoordinatorKeys
        Of the present epoch.
    present : collection of str
        Parties that can be asked. Every party that splits a node must be among them.
    n_rows : int
        Number of rows, in the same order at every party.
    vote : {"soft", "majority"}
        What a tree answers.

    Returns
    -------
    outputs : float64 array of shape (n_rows, n_outputs)
        Bit for bit the answers of the other ways to predict.
    uncertain : bool array of shape (n_rows,)
        False everywhere.

    Raises
    ------
    EpochError
        If the splits are of another epoch than the keys.
    PolicyError
        If the forest has splits of a party whose key has been revoked.
    DataError
        If a party that splits nodes is absent.

    """
    leaf = yield from walk_own_rows(forest, keys, present, n_rows)
    return outputs_from_leaves(leaf, forest.forest.leaves, vote), np.zeros(n_rows, bool)


def walk_own_rows(
    forest: CoordinatorRevocable, keys: CoordinatorKeys, present: Collection[str], n_rows: int
) -> Generator[Round, dict[str, Message], NDArray[np.int32]]:
    """The leaf of each row in each tree; see `predict_own_rows`."""
    check_forest(forest, keys)
    grown = forest.forest
    absent = [party for party in splitting_parties(grown) if party not in present]
    if absent:
        raise DataError(
            f"Scoring by encrypted splits needs every party that splits nodes, and {named(absent)} is absent. Score "
            "with encrypted_splits=False."
        )
    walk = NodeByNode(grown.structure, grown.owner, n_rows)
    shown = np.zeros(grown.structure.n_nodes, bool)
    level = 0
    while questions := walk.questions():
        requests: dict[str, Message] = {}
        for owner, (rows, nodes) in questions.items():
            fresh = np.unique(nodes[~shown[nodes]])
            shown[fresh] = True
            at = np.searchsorted(forest.splits.node, fresh)
            requests[grown.parties[owner]] = msg.TestRows(
                epoch=keys.epoch,
                rows=rows,
                nodes=nodes,
                fresh=fresh,
                splits=forest.splits.data[at],
                tags=forest.splits.tag[at],
            )
        replies = yield Round(PHASE, requests, Progress(level, level + 1, f"level {level}"))
        walk.step({i: reply_of(replies[grown.parties[i]], msg.RowsTested, grown.parties[i]).bits for i in questions})
        level += 1
    return walk.leaves()


def require_every_row(known: NDArray[np.bool_]) -> None:
    """Refuse a test at a party that lacks rows: both branches are not followed."""
    if not known.all():
        raise DataError(
            "Scoring by encrypted splits needs every row at every party; use join='inner', or score with "
            "encrypted_splits=False."
        )


class RowTester(MessageHandler):
    """A party in FRF-Test.

    What it opens could serve a dishonest coordinator to check guesses of a split, so

    - it opens no ciphertext but those that it has made itself for a split of the same column, which their tags prove: a
      guess that the coordinator has encrypted is refused, whether it is right or wrong;
    - keys under which it has encrypted the splits of another forest are refused;
    - once an opened split has not been the one of its node, it answers nothing more in this job, also after a restart.
      This is the only refusal that changes its state.

    As in the classical prediction, every row goes down every tree once, on the path that the party's own answers allow.

    Parameters
    ----------
    forest : PartyForest
        The party's part of the forest.
    columns : sequence of arrays
        The party's columns of the rows, in the order and the codes of the training's.
    keys : EpochKeys or None
        The party's keys of the forest.
    fingerprint : str
        Of the forest, as the party knows it.
    known : bool array, optional
        Which rows the party has; all of them if omitted.
    sealed_only : bool
        Whether the party's policy is to answer under seal only: then it refuses.
    encoding, digits
        How splits became integers; see `woodlot.crypto.encoding`.
    threads : int
        For the decryptions.
    deceived, note_deceived : callable, optional
        Whether the coordinator's copies have been wrong in this job before, and what keeps that for good.

    Raises
    ------
    DataError
        If the party lacks rows.
    EpochError
        If the keys are of another forest's splits.

    """

    def __init__(
        self,
        forest: PartyForest,
        columns: Columns,
        keys: EpochKeys | None,
        *,
        fingerprint: str,
        known: NDArray[np.bool_] | None = None,
        sealed_only: bool = False,
        encoding: Encoding = "exact",
        digits: int = DEFAULT_DIGITS,
        threads: int = 1,
        deceived: Callable[[], bool] = lambda: False,
        note_deceived: Callable[[], None] = lambda: None,
    ) -> None:
        if known is not None:
            require_every_row(known)
        if keys is not None and len(forest.splits.node) and fingerprint not in keys.forests:
            raise EpochError("these keys are not those under which this party's splits of the forest were encrypted")
        self._forest = forest
        self._columns = columns
        self._keys = keys
        self._sealed_only = sealed_only
        self._encoding: Encoding = encoding
        self._digits = digits
        self._threads = threads
        self._key: WeakKey | None = None
        self._paths: Paths | None = None
        self._shown = np.zeros(len(forest.splits.node), bool)
        self._deceived = False
        self._was_deceived, self._note_deceived = deceived, note_deceived

    @property
    def keys(self) -> EpochKeys | None:
        """The keys with which it was made."""
        return self._keys

    @takes(msg.TestRows)
    def test(self, message: msg.TestRows) -> msg.RowsTested:
        """Tell which way rows go, after a check of the coordinator's copies of the splits."""
        if self._sealed_only:
            raise PolicyError("this party's policy is to answer under seal only: score with sealed=True")
        keys = present_keys(self._keys, message.epoch)
        if self._deceived or self._was_deceived():
            raise CiphertextError("the coordinator's copies of this party's splits were wrong; this job is over here")
        structure, splits = self._forest.structure, self._forest.splits
        if len(message.rows) > len(self._columns[0]) * structure.n_trees:
            raise RemoteProtocolError("TestRows asks about more rows than there are in all trees")
        bits = answer_questions(structure, splits, self._columns, message.rows, message.nodes)
        paths = Paths(structure, len(self._columns[0])) if self._paths is None else self._paths
        paths.check(message.rows, message.nodes)  # before anything is opened
        asked = np.unique(np.searchsorted(splits.node, message.nodes))
        fresh = asked[~self._shown[asked]]
        if not np.array_equal(splits.node[fresh], message.fresh):
            raise RemoteProtocolError("TestRows must bring the split of each node once, when it is first asked about")
        key = self._key or WeakKey(keys.read_group(), bytes_number(keys.secret))
        self._check_made_here(keys, key.group.element_bytes, fresh, message)
        self._check_equal(key, fresh, message)
        paths.follow(message.rows, message.nodes, bits)
        self._key, self._paths = key, paths
        self._shown[fresh] = True
        return msg.RowsTested(bits=bits)

    def _check_made_here(self, keys: EpochKeys, width: int, fresh: NDArray[np.int64], message: msg.TestRows) -> None:
        """Refuse ciphertexts that this party has not made for splits of these columns; nothing is opened for it."""
        if message.splits.shape != (len(fresh), 2 * width) or len(message.tags) != len(fresh):
            raise RemoteProtocolError("there must be one split and one tag for each node that is new")
        own = made_key(keys)
        for feature, line, tag in zip(
            self._forest.splits.feature[fresh].tolist(), message.splits[:, :width], message.tags, strict=True
        ):
            facts = made_facts(keys, feature, line.tobytes())
            check_tag(own, tag.tobytes(), "a split is not one that this party has encrypted", *facts)

    def _check_equal(self, key: WeakKey, fresh: NDArray[np.int64], message: msg.TestRows) -> None:
        """Open the coordinator's copies, and refuse where one is not the split that stands at its node."""
        own = codes_of(self._forest.splits.threshold[fresh], self._encoding, self._digits)
        ciphertexts = key.group.read_pairs(message.splits)
        try:
            # squared: -C2 would tell whether the key is even
            doubled = [scale(ciphertext, 2) for ciphertext in ciphertexts]
            same = key.decrypt(doubled, threads=self._threads) == [2 * code for code in own.tolist()]
        except CiphertextError:
            same = False
        if not same:
            self._deceived = True
            self._note_deceived()
            raise CiphertextError("what the coordinator has kept is not the split that this party gave for the node")
