"""Receipts: whole, or found out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from members import Federation
from typer.testing import CliRunner

from woodlot.cli import app
from woodlot.exceptions import PolicyError, ReceiptError
from woodlot.identity.authority import Authority
from woodlot.identity.identity import Identity
from woodlot.identity.receipts import (
    CostOf,
    FreshKey,
    MemberKey,
    Receipt,
    RevocationScores,
    Statement,
    TreeChange,
    check_request,
    make_receipt,
    make_request,
    now,
)

MODEL = "ab" * 32


def statement(**changed: Any) -> Statement:
    fields: dict[str, Any] = {
        "party": "shop", "level": 1, "model": MODEL, "created": now(),
        "parties_before": ("bank", "shop"), "parties_after": ("bank",),
        "before": {"coordinator": MODEL}, "after": {"coordinator": "cd" * 32},
        "epoch_before": 0, "epoch_after": 1, "keys_before": 0, "keys_after": 0,
        "trees": (TreeChange(tree=3, removed=5, regrown=7),),
        "nodes_before": 50, "nodes_after": 52,
        "cost": CostOf(rounds=9, bytes=1000, seconds=0.25, nodes_searched=4),
        "scores": RevocationScores(measure="accuracy", rows="held out", before=0.9, after=0.88),
        "notified": ("bank",), "revoked_key": "", "rows": "of the training",
    }  # fmt: skip
    return Statement(**(fields | changed))


@pytest.fixture(scope="module")
def receipt() -> Receipt:
    key = FreshKey()
    return make_receipt(statement(), make_request("shop", 1, MODEL, key), key)


def leaves_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves_of(inner, (*path, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves_of(inner, (*path, number))
    else:
        yield path


def test_a_receipt_survives_its_file(receipt: Receipt, tmp_path: Path) -> None:
    receipt.save(tmp_path / "receipt.json")
    verdict = Receipt.load(tmp_path / "receipt.json").verify()
    assert verdict.signer == verdict.requester
    assert not verdict.vouched
    assert "5 of 50 nodes removed" in repr(receipt)


def test_every_changed_field_is_found(receipt: Receipt) -> None:
    whole = json.loads(receipt.to_json())
    paths = list(leaves_of(whole))
    assert len(paths) > 25
    for path in paths:
        changed = json.loads(receipt.to_json())
        place = changed
        for step in path[:-1]:
            place = place[step]
        value = place[path[-1]]
        place[path[-1]] = value + 1 if isinstance(value, int | float) else f"{value}0"
        with pytest.raises(ReceiptError):
            Receipt.parse(json.dumps(changed).encode()).verify()


def test_added_dropped_and_doubled_fields_are_found(receipt: Receipt) -> None:
    whole = json.loads(receipt.to_json())
    for name in whole["statement"]:
        changed = json.loads(receipt.to_json())
        del changed["statement"][name]
        with pytest.raises(ReceiptError):
            Receipt.parse(json.dumps(changed).encode()).verify()
    whole["statement"]["note"] = "paid"
    with pytest.raises(ReceiptError, match="note"):
        Receipt.parse(json.dumps(whole).encode())
    doubled = receipt.to_json().replace('"party"', '"party": "bank", "party"', 1)
    with pytest.raises(ReceiptError, match="twice"):
        Receipt.parse(doubled.encode())
    with pytest.raises(ReceiptError, match="no receipt"):
        Receipt.parse(b"[]")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"nodes_after": 53}, "add up"),
        ({"parties_after": ("bank", "shop")}, "has left"),
        ({"notified": ("shop",)}, "still holds"),
        ({"epoch_after": 0}, "epochs"),
        ({"level": 3}, "something else"),
        ({"level": 2}, "something else"),
    ],
)
def test_a_signed_receipt_must_make_sense(changed: dict[str, Any], words: str) -> None:
    key = FreshKey()
    with pytest.raises(ReceiptError, match=words):
        make_receipt(statement(**changed), make_request("shop", 1, MODEL, key), key).verify()


def test_requests_forged_expired_or_for_something_else_are_refused() -> None:
    request = make_request("shop", 1, MODEL, FreshKey())
    check_request(request, "shop", 1, MODEL)
    later = datetime.now(UTC) + timedelta(days=2)
    refused: list[tuple[Any, ...]] = [
        (("shop", 1, MODEL, later), "not valid now"),
        (("bank", 1, MODEL), "for 'shop'"),
        (("shop", 3, MODEL), "level 1"),
        (("shop", 1, "cd" * 32), "used before"),
    ]
    for arguments, words in refused:
        with pytest.raises(PolicyError, match=words):
            check_request(request, *arguments)
    forged = msgspec.structs.replace(request, data=request.data.replace(b"shop", b"bank"))
    with pytest.raises(PolicyError, match="was changed"):
        check_request(forged, "bank", 1, MODEL)


def test_members_sign_and_the_authority_vouches(tmp_path: Path) -> None:
    federation = Federation(tmp_path, Authority.create(tmp_path / "authority", "north", days=300))
    coordinator = MemberKey(Identity.load(federation.join("coordinator", "coordinator")))
    user, issuer = MemberKey(Identity.load(federation.join("user", "alice"))), federation.ca
    request = make_request("shop", 1, MODEL, user)
    receipt = make_receipt(statement(), request, coordinator)
    verdict = receipt.verify(issuer)
    assert verdict.vouched
    assert (verdict.signer, verdict.requester) == ("coordinator 'coordinator'", "user 'alice'")
    with pytest.raises(ReceiptError, match="it takes a coordinator"):
        make_receipt(statement(), request, user).verify(issuer)
    for moment in ("yesterday", "2026-01-01", "", "2026-01-01T00:00:00"):
        with pytest.raises(ReceiptError, match="not signed at a time"):
            make_receipt(statement(created=moment), request, coordinator).verify(issuer)
    stranger = Federation(tmp_path, Authority.create(tmp_path / "other", "elsewhere", days=300))
    with pytest.raises(ReceiptError):
        receipt.verify(stranger.ca)
    key = FreshKey()
    with pytest.raises(ReceiptError, match="without certificate"):
        make_receipt(statement(), make_request("shop", 1, MODEL, key), key).verify(issuer)

    receipt.save(tmp_path / "receipt.json")
    (tmp_path / "ca.pem").write_bytes(issuer)
    runner = CliRunner()
    command = ["audit", "verify", str(tmp_path / "receipt.json")]
    told = runner.invoke(app, [*command, "--authority", str(tmp_path / "ca.pem")])
    assert told.exit_code == 0, told.output
    assert "coordinator 'coordinator'" in " ".join(told.output.split())
    (tmp_path / "receipt.json").write_text(receipt.to_json().replace('"regrown": 7', '"regrown": 8'))
    told = runner.invoke(app, command)
    assert told.exit_code == 1
    assert "NO" in told.output
