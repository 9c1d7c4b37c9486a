"""What scripts/house.py counts."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import house

ORDERS = """
class TrainOrder(Order, tag="train"): ...
class AlignOrder(Order, tag="align"): ...
class TrainRowsOrder(Order, tag="train-rows"): ...
AnyOrder = TrainOrder | AlignOrder | TrainRowsOrder
WORDS = ("train", "align", "score")
"""
PARTY = """
from orders import AlignOrder, TrainOrder

def kind(order, federation):
    if order.kind == "train":  # the usual one
        return 1
    elif order.kind in ("align", "train-rows"):  # noqa: PLR6201
        return 2
    return isinstance(federation, Federation | ConnectedFederation)

class State: ...
"""


def test_figures_of_a_small_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"rows/party.py": PARTY, "estimators/party.py": PARTY, "orders.py": ORDERS}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(house, "PACKAGE", tmp_path)

    sources = house.read_sources()
    lines = len((PARTY + PARTY + ORDERS).splitlines())

    assert [figure.value for figure in house.size(sources)] == ["3", f"{lines} ({lines - 7} not blank)"]
    assert house.imports(sources).value == "2"
    assert house.comments(sources).value.startswith("2 ")
    assert house.shared_names(sources).found == ["party.py: estimators, rows"]
    assert house.repeated_classes(sources).found == ["State: estimators/party.py:11, rows/party.py:11"]
    assert [figure.value for figure in house.federation_checks(sources)] == ["1", "1"]
    assert house.lists_of_kinds(sources).found == [
        "estimators/party.py:5 align, train, train-rows",
        "orders.py:5 align, train, train-rows",
        "rows/party.py:5 align, train, train-rows",
    ]


def test_the_wheel_has_what_is_not_python_too() -> None:
    files, _ = house.wheel()

    assert any(line.endswith("src/woodlot/py.typed") for line in files.found)


def test_every_class_has_a_name_of_its_own() -> None:
    texts = [path.read_text(encoding="utf-8") for path in house.PACKAGE.rglob("*.py")]
    names = Counter(name for text in texts for name in re.findall(r"^ *class (\w+)[(:]", text, re.MULTILINE))

    assert [name for name, n in names.items() if n > 1] == []


@pytest.mark.slow
def test_estimators_never_ask_what_sort_of_federation_they_have() -> None:
    in_estimators, elsewhere = house.federation_checks(house.read_sources())

    assert in_estimators.found == []
    assert len(elsewhere.found) == 1  # is it a federation, or a table?


@pytest.mark.slow
def test_walks_open_files_of_every_layer_they_go_through() -> None:
    opened = {figure.name.removeprefix("files opened: "): figure.found for figure in house.walks()}

    assert opened.keys() == house.WALKS.keys()
    for name in house.WALKS:
        assert any(file.startswith("protocols/") for file in opened[name])
    assert any(file.startswith("service/") for file in opened["job over services"])
    assert not any(file.startswith("service/") for file in opened["fit in process"])
