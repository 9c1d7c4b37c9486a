"""A complete forest in the formats of other runtimes: ONNX and treelite (extra ``export``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.extras import need
from woodlot.exceptions import DataError
from woodlot.trees.encoding import CategoryCoding
from woodlot.trees.forest import Link

if TYPE_CHECKING:
    from woodlot.estimators.complete import CompleteForest

EXTRA = "export"
OPSET, ML_OPSET, IR_VERSION = 18, 3, 8
"""Versions of ONNX that runtimes since 2023 know."""
DOUBLE, FLOAT = 11, 1
"""ONNX's numbers for types of tensors."""
FEWEST_CLASSES = 3
"""Runtimes read the scores of one or two classes in ways of their own; classes that no leaf knows prevent it."""


def answers_of(forest: CompleteForest) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """What leaves answer, sparse: leaf, output and value of each entry, as the trees' votes are counted."""
    leaves = forest.coordinator.leaves
    if len(forest.classes) and forest.vote == "majority":
        return np.arange(len(leaves.weight)), leaves.top.astype(np.int64), np.ones(len(leaves.weight))
    at = np.repeat(np.arange(len(leaves.weight)), np.diff(leaves.start))
    return at, leaves.output.astype(np.int64), leaves.value


# --- ONNX ---


def to_onnx(forest: CompleteForest, path: str | os.PathLike[str] | None = None) -> Any:
    """Build an ONNX model: rows of float32 in, labels and probabilities, or targets, out."""
    if forest.categorical_features:
        raise DataError(
            f"ONNX's trees cannot split categories as sets: {list(forest.categorical_features)}; train on numeric "
            "columns to export, or use to_treelite()"
        )
    onnx = need("onnx", EXTRA)
    helper = need("onnx.helper", EXTRA)
    structure, n_features = forest.coordinator.structure, len(forest.feature_names)
    rows = helper.make_tensor_value_info("X", FLOAT, [None, n_features])
    nodes = [helper.make_node("Cast", ["X"], ["exact"], to=DOUBLE)]
    trees = np.array([structure.n_trees], np.float32)
    constants = [_tensor("trees", trees)]
    if len(forest.classes):
        names = forest.classes.astype(str).astype(object) if forest.classes.dtype.kind in "UOT" else forest.classes
        constants += [
            _tensor("classes", names),
            *(_tensor(name, np.array([value])) for name, value in (("first", 0), ("stop", len(names)), ("axis", 1))),
        ]
        nodes += [
            helper.make_node(
                "TreeEnsembleClassifier", ["exact"], ["number", "votes"], domain="ai.onnx.ml",
                classlabels_int64s=list(range(max(len(names), FEWEST_CLASSES))), **_ensemble(forest, "class"),
            ),
            helper.make_node("Slice", ["votes", "first", "stop", "axis"], ["own votes"]),
            *_shares(helper, forest.coordinator.leaves.link),
        ]  # fmt: skip
        outputs = [
            helper.make_tensor_value_info("label", constants[1].data_type, [None]),
            helper.make_tensor_value_info("probabilities", FLOAT, [None, len(forest.classes)]),
        ]
    else:
        nodes += [
            helper.make_node(
                "TreeEnsembleRegressor", ["exact"], ["sum"], domain="ai.onnx.ml", n_targets=1,
                **_ensemble(forest, "target"),
            ),
            helper.make_node("Div", ["sum", "trees"], ["target"]),
        ]  # fmt: skip
        outputs = [helper.make_tensor_value_info("target", FLOAT, [None, 1])]
    graph = helper.make_graph(nodes, "forest", [rows], outputs, constants)
    versions = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=IR_VERSION, producer_name="woodlot")
    onnx.checker.check_model(model)
    if path is not None:
        Path(path).write_bytes(model.SerializeToString())
    return model


def _shares(helper: Any, link: Link) -> list[Any]:
    """From votes to probabilities and labels. Scores can all be below 0, which is that of a class no leaf knows."""
    if link == "mean":
        return [
            helper.make_node("Gather", ["classes", "number"], ["label"]),
            helper.make_node("Div", ["own votes", "trees"], ["probabilities"]),
        ]
    return [
        helper.make_node("Div", ["own votes", "trees"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
        helper.make_node("Gather", ["classes", "best"], ["label"]),
    ]


def _tensor(name: str, values: NDArray[Any]) -> Any:
    return need("onnx.numpy_helper", EXTRA).from_array(values, name)


def _ensemble(forest: CompleteForest, what: str) -> dict[str, Any]:
    """Attributes of the trees. In double precision: a float32 value compares as it does here."""
    structure, splits = forest.coordinator.structure, forest.splits
    sizes = np.diff(structure.offset)
    tree = np.repeat(np.arange(structure.n_trees), sizes)
    first = np.repeat(structure.offset[:-1], sizes)
    n, inner = structure.n_nodes, splits.node
    number = np.arange(n) - first
    feature, left, right, missing = (np.zeros(n, np.int64) for _ in range(4))
    threshold = np.zeros(n)
    feature[inner], threshold[inner], missing[inner] = splits.feature, splits.threshold, splits.missing_left
    left[inner], right[inner] = number[inner] + 1, structure.right[inner] - first[inner]
    leaf_node = np.flatnonzero(structure.right < 0)
    at, output, value = answers_of(forest)
    return {
        "nodes_treeids": tree.tolist(),
        "nodes_nodeids": number.tolist(),
        "nodes_modes": np.where(structure.right < 0, "LEAF", "BRANCH_LEQ").tolist(),
        "nodes_featureids": feature.tolist(),
        "nodes_values_as_tensor": _tensor("thresholds", threshold),
        "nodes_truenodeids": left.tolist(),
        "nodes_falsenodeids": right.tolist(),
        "nodes_missing_value_tracks_true": missing.tolist(),
        f"{what}_treeids": tree[leaf_node[at]].tolist(),
        f"{what}_nodeids": number[leaf_node[at]].tolist(),
        f"{what}_ids": output.tolist(),
        f"{what}_weights_as_tensor": _tensor("answers", value),
    }


# --- treelite ---


def to_treelite(forest: CompleteForest) -> Any:
    """Build a treelite model."""
    builder = need("treelite.model_builder", EXTRA)
    structure, n_outputs = forest.coordinator.structure, forest.coordinator.leaves.n_outputs
    classes = len(forest.classes) > 0
    model = builder.ModelBuilder(
        threshold_type="float64",
        leaf_output_type="float64",
        metadata=builder.Metadata(
            num_feature=len(forest.feature_names),
            task_type="kMultiClf" if classes else "kRegressor",
            average_tree_output=True,
            num_target=1,
            num_class=[n_outputs],
            leaf_vector_shape=(1, n_outputs),
        ),
        tree_annotation=builder.TreeAnnotation(
            num_tree=structure.n_trees,
            target_id=[0] * structure.n_trees,
            class_id=[-1 if n_outputs > 1 else 0] * structure.n_trees,
        ),
        postprocessor=builder.PostProcessorFunc(name=_postprocessor(forest)),
        base_scores=[0.0] * n_outputs,
    )
    answers = _dense_answers(forest)
    question = np.cumsum(structure.right >= 0) - 1
    for tree in range(structure.n_trees):
        low, high = int(structure.offset[tree]), int(structure.offset[tree + 1])
        model.start_tree()
        for node in range(low, high):
            model.start_node(node - low)
            if structure.right[node] < 0:
                model.leaf(answers[structure.leaf[node]])
            else:
                _add_test(model, forest, int(question[node]), node + 1 - low, int(structure.right[node]) - low)
            model.end_node()
        model.end_tree()
    return model.commit()


def _postprocessor(forest: CompleteForest) -> str:
    if forest.coordinator.leaves.link == "softmax":
        return "softmax"
    return "identity_multiclass" if len(forest.classes) else "identity"


def _dense_answers(forest: CompleteForest) -> list[Any]:
    """What each leaf answers: a number, or the shares of all classes."""
    at, output, value = answers_of(forest)
    dense = np.zeros((len(forest.coordinator.leaves.weight), forest.coordinator.leaves.n_outputs))
    dense[at, output] = value
    answers: list[Any] = dense.tolist() if dense.shape[1] > 1 else dense[:, 0].tolist()
    return answers


def _add_test(model: Any, forest: CompleteForest, question: int, left: int, right: int) -> None:
    splits = forest.splits
    feature, missing_left = int(splits.feature[question]), bool(splits.missing_left[question])
    children = {"left_child_key": left, "right_child_key": right}
    coding = forest.codings[feature]
    if not isinstance(coding, CategoryCoding):
        threshold = float(splits.threshold[question])
        model.numerical_test(feature, threshold, default_left=missing_left, opname="<=", **children)
        return
    known = splits.sets[splits.set_start[question] : splits.set_start[question + 1]]
    goes_left = np.unpackbits(known, count=len(coding.categories) + 1, bitorder="little").astype(bool)
    listed = np.flatnonzero(goes_left[:-1])
    # a list must not be empty: where no category goes left, all of them go right
    to_right = len(listed) == 0
    model.categorical_test(
        feature,
        default_left=bool(goes_left[-1]),
        category_list=np.flatnonzero(~goes_left[:-1]).tolist() if to_right else listed.tolist(),
        category_list_right_child=to_right,
        **children,
    )
