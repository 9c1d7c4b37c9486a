"""Reading a saved model."""

from __future__ import annotations

import os

from woodlot.estimators.forest import FederatedForestClassifier, FederatedForestRegressor
from woodlot.exceptions import ModelFileError
from woodlot.federation import GrownForest
from woodlot.protocols.vertical.files import load_parts

ESTIMATORS = {cls.__name__: cls for cls in (FederatedForestClassifier, FederatedForestRegressor)}


def load(folder: str | os.PathLike[str]) -> FederatedForestClassifier | FederatedForestRegressor:
    """Load a model that ``save`` has written, with the parts of the parties that are in the folder.

    Where a party's part is not there, it must come from its own folder (``combine``), or its nodes are unknown.
    """
    coordinator, parts, extra = load_parts(folder)
    kind = ESTIMATORS.get(str(extra.get("estimator")))
    if kind is None:
        raise ModelFileError(f"{folder} holds a model of unknown kind {extra.get('estimator')!r}")
    model = kind(**extra["params"])
    import numpy as np

    model._restore(GrownForest(coordinator, parts, None, extra["oob_score"], np.array(extra["residuals"])), extra)
    return model
