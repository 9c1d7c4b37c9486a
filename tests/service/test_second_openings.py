"""Everybody a process of its own: what a coordinator has opened a second time, the helper refuses, and says why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import reopener
from processes import Processes, deviating, small_tables
from small_jobs import user_of
from world import PROTECTS, TRUSTED, World

import woodlot as wl
from woodlot.service.client import JobFailed
from woodlot.service.encrypted import make_keys, predict_encrypted

RIGHTS = {"train": ["alice"], "predict": ["alice"], "weak_keys": True}
POLICY = PROTECTS | TRUSTED | RIGHTS | {"lead": ["coordinator", "holder"]}
POLICY |= {"protocols": ["align", "train", "predict", "keys", "predict-encrypted"]}
MEMBERS = {"helper": "helper", "key_service": "keys"}
REFUSED = {
    "paper": {
        "other_comparisons": "this step has been answered; its randomness is good for one use",
        "another_step": "a row is compared with a split once in a request",
        "opened_again": "no comparisons of this step are open here",
    },
    "shares": {
        "taken_again": "this request has been taken; it is answered once",
        "compared_again": r"comparisons of row \d with splits of '(bank|shop)' are asked for",
    },
}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Processes]:
    world = World(tmp_path, small_tables())
    for own in world.settings.values():
        own["policy"] = POLICY
    world.key_members(RIGHTS)
    deviation = tmp_path / "deviation"
    deviation.write_text("")
    with deviating(world, reopener.__file__, {reopener.SETTING: str(deviation)}) as services:
        yield services


@pytest.mark.slow
@pytest.mark.parametrize("scheme", list(REFUSED))
def test_the_helper_refuses_a_second_opening(running: Processes, scheme: str) -> None:
    world, deviation = running.world, running.world.root / "deviation"
    rng = np.random.default_rng(1)
    columns = {name: rng.normal(size=3) for name in ("bank.age", "bank.income", "shop.visits", "shop.basket")}
    short = {"bits": 512, "setting": "test"} if scheme == "paper" else {}
    setting = {"setting": "test"} if scheme == "paper" else {}
    with user_of(world) as user:
        forest = wl.FederatedForestClassifier(6, max_depth=2, random_state=1).fit(user, y="bank.late")
        model = str(forest.forest_.model)
        make_keys(user.client, model, **MEMBERS, **short, scheme=scheme)
        outputs = predict_encrypted(user.client, model, columns, **setting)
        for what, why in REFUSED[scheme].items():
            deviation.write_text(what)
            with pytest.raises(JobFailed, match=f"'helper'.*{why}"):
                predict_encrypted(user.client, model, columns, **setting)
            assert re.search(f"is refused: .*{why}", running.log("helper"))
        # nothing of it has harmed anybody: honest requests go on
        deviation.write_text("")
        np.testing.assert_array_equal(predict_encrypted(user.client, model, columns, **setting), outputs)
