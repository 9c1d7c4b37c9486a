"""Every table and figure of the five papers: what it claims, and which experiment reproduces it."""

from __future__ import annotations

from dataclasses import dataclass

FF_2019 = "Federated Forest (2019)"
FF_JOURNAL = "Federated Forest (journal)"
FET = "Federated Extra-Trees"
REVFRF = "RevFRF (Revocable Federated Learning)"
SLIDES = "Collaborative forest (slides)"
PAPERS = (FF_2019, FF_JOURNAL, FET, REVFRF, SLIDES)
BEYOND = "Beyond the papers"


@dataclass(frozen=True)
class Item:
    """A table or figure.

    Attributes
    ----------
    paper : str
        Whose.
    label : str
        Its name there.
    about : str
        What it shows.
    experiment : str, optional
        What reproduces it.
    note : str
        Why nothing does, or with which restriction.
    page : str, optional
        The page of results of another script that shows it.

    """

    paper: str
    label: str
    about: str
    experiment: str | None = None
    note: str = ""
    page: str | None = None

    @property
    def title(self) -> str:
        """Paper and name."""
        return self.label if self.paper == BEYOND else f"{self.paper}, {self.label}"


_DRAWING = "a drawing: nothing to measure"
_NOTATION = "notation: nothing to measure"
_MARKETING = "the target marketing data are not public; gene and year prediction are not at hand"

ITEMS: dict[str, Item] = {
    # --- Federated Forest ---
    "ff19-figures-1-2": Item(FF_2019, "Figures 1, 2", "the setting", note=_DRAWING),
    "ff19-table-1": Item(FF_2019, "Table 1", "accuracy, RMSE of RF1, RF2, F-LR, NonFF, FF", "ff-accuracy", _MARKETING),
    "ff19-figure-3": Item(FF_2019, "Figure 3", "accuracy and times against the number of domains", "ff-domains"),
    "ff19-figure-4": Item(FF_2019, "Figure 4", "prediction time against the number of trees", "ff-prediction"),
    "ff19-figure-5": Item(FF_2019, "Figure 5", "prediction time against the depth", "ff-prediction"),
    "ff19-figure-6": Item(FF_2019, "Figure 6", "prediction time against the test rows", "ff-prediction"),
    "ff19-tables-2-3": Item(FF_2019, "Tables 2, 3", "data sets; notation", "data-sets"),
    "ffj-figures-1-3": Item(FF_JOURNAL, "Figures 1-3", "the setting and the trees' parts", note=_DRAWING),
    "ffj-tables-1-2": Item(FF_JOURNAL, "Tables 1, 2", "notation; data sets", "data-sets"),
    "ffj-table-3": Item(FF_JOURNAL, "Table 3", "accuracy of RF1, RF2, F-LR, NonFF, FF", "ff-accuracy", _MARKETING),
    "ffj-table-4": Item(FF_JOURNAL, "Table 4", "RMSE of the same", "ff-accuracy", "year prediction is not at hand"),
    "ffj-figure-4": Item(FF_JOURNAL, "Figure 4", "accuracy and times against the number of domains", "ff-domains"),
    "ffj-figure-5": Item(FF_JOURNAL, "Figure 5", "convergence with the number of trees", "ff-convergence"),
    "ffj-figure-6": Item(FF_JOURNAL, "Figure 6", "prediction time against the number of trees", "ff-prediction"),
    "ffj-figure-7": Item(FF_JOURNAL, "Figure 7", "prediction time against the depth", "ff-prediction"),
    "ffj-figure-8": Item(FF_JOURNAL, "Figure 8", "prediction time against the test rows", "ff-prediction"),
    # --- Federated Extra-Trees ---
    "fet-figures-1-2": Item(FET, "Figures 1, 2", "the setting and the privacy layers", note=_DRAWING),
    "fet-table-1": Item(FET, "Table 1", "data sets", "data-sets"),
    "fet-table-2": Item(
        FET,
        "Table 2",
        "accuracy and F1 of ET, FET, FET-LDP, FET-GDP",
        "fet-accuracy",
        "MIMIC is not public without a contract",
    ),
    "fet-figure-3ad": Item(FET, "Figure 3 (a, d)", "accuracy against the number of clients", "fet-settings"),
    "fet-figure-3be": Item(FET, "Figure 3 (b, e)", "accuracy against the number of trees", "fet-settings"),
    "fet-figure-3cf": Item(FET, "Figure 3 (c, f)", "accuracy against the depth", "fet-settings"),
    # --- RevFRF ---
    "rev-figures-1-6": Item(REVFRF, "Figures 1-6", "the setting and the protocols", note=_DRAWING),
    "rev-table-1": Item(REVFRF, "Table 1", "notation", note=_NOTATION),
    "rev-table-2": Item(REVFRF, "Table 2", "classification after 0 to 5 revocations", "rev-revocations"),
    "rev-table-3": Item(
        REVFRF,
        "Table 3",
        "regression after 0 to 5 revocations",
        "rev-revocations",
        "superconduct and news are subsets; the paper's News numbers are in unknown units",
    ),
    "rev-table-4": Item(
        REVFRF,
        "Table 4",
        "against two other private forests",
        "rev-revocations",
        "the code of the two others is not public: in their place stand forests of the same kind; the Bike data are "
        "not at hand",
    ),
    "rev-table-5": Item(REVFRF, "Table 5", "cost in theory", note="formulas: the slopes are measured in rev-cost"),
    "rev-table-6": Item(REVFRF, "Table 6", "seconds and megabytes of building and prediction", "rev-cost"),
    "rev-table-7": Item(REVFRF, "Table 7", "time to rebuild after 1 to 5 revocations", "rev-rebuilding"),
    "rev-table-8": Item(REVFRF, "Table 8", "data sets", "data-sets"),
    "rev-figure-7": Item(REVFRF, "Figure 7", "accuracy against the number of trees", "rev-convergence"),
    "rev-figure-8": Item(REVFRF, "Figure 8", "error against the number of trees", "rev-convergence"),
    "rev-figure-9": Item(REVFRF, "Figure 9", "cost against nodes and depth", "rev-cost"),
    # --- the collaborative forest ---
    "collab-figures": Item(SLIDES, "drawings", "forests, the process, an example", note=_DRAWING),
    "collab-settings": Item(SLIDES, "settings (two tables)", "parameters and data sets", "data-sets"),
    "collab-comparison": Item(
        SLIDES, "performance comparison", "centralised, NCFF and the proposed forest", "collaborative-accuracy"
    ),
    # --- beyond ---
    "beyond-lossless": Item(BEYOND, "lossless horizontal forest", "equal to the pooled", "collaborative-accuracy"),
    "beyond-privacy": Item(BEYOND, "privacy", "accuracy against the true epsilon", "privacy-accuracy"),
    "beyond-protection": Item(BEYOND, "protection", "cost of open and hidden training, RevFRF", "protection-cost"),
    "beyond-revocation": Item(BEYOND, "revocation", "cost of leaving against growing anew", "revocation-cost"),
    "beyond-scaling": Item(BEYOND, "cost", "cost against rows, columns, trees, depth, parties", "cost-scaling"),
    "beyond-hidden": Item(BEYOND, "hidden training", "CPU, bytes, rounds; the same forest as open", page="hidden"),
    "beyond-private": Item(BEYOND, "private forests", "accuracy at a total epsilon of 1", page="private-forests"),
    "beyond-forgetting": Item(BEYOND, "forgetting rows", "cost against training again", page="forget"),
    "beyond-card": Item(BEYOND, "graphics card", "the same forest on a card and the CPU, and times", page="gpu"),
}
