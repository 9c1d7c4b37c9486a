"""What a user asks for: differential privacy of labels, or of counts. Both travel in the plan of a forest.

========  ================================================================  ==========================================
object    protects                                                          how
========  ================================================================  ==========================================
LocalDP   the label of one row, however many trees and trainings there are  randomised response, once and for ever
GlobalDP  one row, in the counts that leave its client                      integer Laplace noise on every count
========  ================================================================  ==========================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from woodlot.exceptions import DataError
from woodlot.privacy.accounting import check_delta, check_epsilon
from woodlot.privacy.counts import Method
from woodlot.privacy.label_code import LabelCode
from woodlot.privacy.noise import Neighbours, cells_changed
from woodlot.privacy.randomised_response import RandomisedResponse

Code = Literal["auto", "one-bit", "one-hot", "bloom"]

DEFAULT_PR = 0.75
"""How often the permanent response keeps a bit beyond chance, unless told otherwise."""


class LocalDP(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="local"):
    """Local differential privacy of labels: randomised response that is derived from a secret of each client.

    Only sums of randomised bits leave a client. The total epsilon for the label of a row is that of the permanent
    response: more trees, deeper trees and further trainings cost nothing. **Not protected:** the columns of a row,
    that it is there, and how many rows are in a node.

    Parameters
    ----------
    epsilon : float, optional
        Total epsilon, from which the noise follows. Give either this or ``pr``.
    pr : float, optional
        The paper's parameter: a bit is kept with probability (1 + pr) / 2. 0.75 unless epsilon is given.
    code : {"auto", "one-bit", "one-hot", "bloom"}
        How a label is written as bits. "auto" is one bit for two classes, and one bit per class for more. At equal
        epsilon a Bloom filter, the paper's code, was never better.
    xi, zeta : float
        Instant response: a bit 1, or 0, is told as 1 with this probability. 1 and 0 switch it off: it never lowers the
        total epsilon.
    counts : {"auto", "nnls", "lasso"}
        How counts of classes are found from sums of bits; "lasso" is the paper's way.
    alpha : float
        Strength of the Lasso's penalty.
    length, hashes : int
        Bits of the Bloom filter, and how many of them each class sets.

    Examples
    --------
    >>> import woodlot as wl
    >>> round(wl.LocalDP.preset("label-dp").total_epsilon(["no", "yes"]), 3)
    1.946
    """

    epsilon: float | None = None
    pr: float | None = None
    code: Code = "auto"
    xi: float = 1.0
    zeta: float = 0.0
    counts: Method = "auto"
    alpha: float = 0.01
    length: int = 64
    hashes: int = 2

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
            if self.pr is not None:
                raise ValueError("give either epsilon or pr: each follows from the other")
        if self.code not in ("auto", "one-bit", "one-hot", "bloom"):
            raise ValueError(f"code must be 'auto', 'one-bit', 'one-hot' or 'bloom', not {self.code!r}")
        if self.counts not in ("auto", "nnls", "lasso"):
            raise ValueError(f"counts must be 'auto', 'nnls' or 'lasso', not {self.counts!r}")
        if not self.alpha > 0:
            raise ValueError(f"alpha must be positive, not {self.alpha!r}")
        if not 0 <= self.zeta < self.xi <= 1:
            raise ValueError(f"xi and zeta need 0 <= zeta < xi <= 1, not zeta={self.zeta!r}, xi={self.xi!r}")
        if self.pr is not None and not 0 < self.pr < 1:
            raise ValueError(f"pr must be between 0 and 1, not {self.pr!r}")

    @classmethod
    def preset(cls, name: str) -> LocalDP:
        """One of the settings that were measured.

        Parameters
        ----------
        name : {"label-dp", "label-dp-weak", "label-dp-strong", "ldp-paper"}
            Total epsilon for two classes, and for more: "label-dp" 1.95 and 3.89; "label-dp-weak" 3.0 and 6.0;
            "label-dp-strong" 1.0 and 2.0; "ldp-paper", the paper's mechanism, 3.89 for both.
        """
        if name not in PRESETS:
            raise ValueError(f"there is no preset {name!r}; choose one of {', '.join(PRESETS)}")
        return cls(**PRESETS[name])

    @property
    def is_instant(self) -> bool:
        """Whether there is an instant response, so that each answer has noise of its own."""
        return (self.xi, self.zeta) != (1.0, 0.0)

    def response(self, classes: Sequence[Any]) -> RandomisedResponse:
        """The mechanism for a public list of classes.

        Raises
        ------
        DataError
            If the list cannot be coded.
        """
        names = [str(name) for name in classes]
        kind = ("one-bit" if len(names) == 2 else "one-hot") if self.code == "auto" else self.code
        try:
            if kind == "one-bit":
                code = LabelCode.one_bit(names)
            elif kind == "one-hot":
                code = LabelCode.one_hot(names)
            else:
                code = LabelCode.bloom(names, length=self.length, hashes=self.hashes)
            if self.epsilon is not None:
                return RandomisedResponse.for_epsilon(code, self.epsilon, xi=self.xi, zeta=self.zeta)
            return RandomisedResponse.from_paper(code, pr=self.pr or DEFAULT_PR, xi=self.xi, zeta=self.zeta)
        except ValueError as error:
            raise DataError(f"labels of {len(names)} class(es) cannot be told under LocalDP: {error}") from None

    def total_epsilon(self, classes: Sequence[Any]) -> float:
        """The total for the label of one row."""
        return self.response(classes).epsilon()


PRESETS: dict[str, dict[str, Any]] = {
    "label-dp": {"pr": DEFAULT_PR},
    "label-dp-weak": {"pr": 0.905},
    "label-dp-strong": {"pr": 0.46},
    "ldp-paper": {"pr": DEFAULT_PR, "code": "one-hot", "xi": 0.9, "zeta": 0.1},
}


class GlobalDP(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="global"):
    """Differential privacy of rows: every client adds integer Laplace noise to its own counts.

    A row is counted once per level, candidate feature and tree, and each time costs. So a forest that looks at the
    data to choose its splits needs a total epsilon of hundreds to be as good as one without noise, which is no
    protection. The paper prints neither that total nor the part of a query. With ``leaves_only`` the splits do not
    depend on the data at all, and a row costs once per tree.

    Parameters
    ----------
    epsilon : float, optional
        Total epsilon, divided evenly among all queries that a row takes part in.
    query_epsilon : float, optional
        Epsilon of one query, as in the paper. Give either this or ``epsilon``.
    delta : float
        Delta of the composed total, which is printed beside the plain sum.
    neighbours : {"add-remove", "replace"}
        What stays hidden: whether a row is there, or what is in it.
    leaves_only : bool
        Draw the splits from the declared ranges alone, and ask for the counts in the leaves only.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> privacy = wl.GlobalDP(epsilon=1.0, leaves_only=True)
    >>> model = wl.FederatedExtraTreesClassifier(n_estimators=5, max_depth=3, privacy=privacy, random_state=0).fit(X, y)
    >>> round(model.privacy_.plain_epsilon, 6)
    1.0
    """

    epsilon: float | None = None
    query_epsilon: float | None = None
    delta: float = 1e-6
    neighbours: Neighbours = "add-remove"
    leaves_only: bool = False

    def __post_init__(self) -> None:
        given = [epsilon for epsilon in (self.epsilon, self.query_epsilon) if epsilon is not None]
        if len(given) != 1:
            raise ValueError("GlobalDP needs either epsilon, the total, or query_epsilon")
        check_epsilon(given[0])
        check_delta(self.delta)
        cells_changed(self.neighbours)

    def epsilon_of_a_query(self, queries: int) -> float:
        """Of one query, where a row takes part in so many."""
        return self.epsilon / queries if self.epsilon is not None else float(self.query_epsilon or 0.0)


Privacy = LocalDP | GlobalDP | None
"""What a forest is grown under."""
