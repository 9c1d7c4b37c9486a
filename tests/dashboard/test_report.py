"""Signed pages: every byte counts, and only members of the federation may sign."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from woodlot.cli import app
from woodlot.dashboard.learnt import Matrix, Roles, learnt
from woodlot.dashboard.report import DAYS, Period
from woodlot.exceptions import DataError, ReceiptError
from woodlot.identity.authority import Authority
from woodlot.identity.identity import Identity
from woodlot.identity.receipts import FreshKey, MemberKey, now
from woodlot.identity.signed_page import MARK, PURPOSE, SIGNER, SignedPage, is_report
from woodlot.identity.throwaway import make_identities
from woodlot.jobs import every_message  # noqa: F401 - so that all messages are known
from woodlot.runtime.audit import DisclosureRow


def page_of(name: str, role: str = "party") -> str:
    return f"<html>{MARK.format(now())}<dl>{SIGNER.format(name, role)}</dl><p>all is well</p></html>\n"


PAGE = page_of("bank")


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    root = tmp_path_factory.mktemp("members")
    roles = {"coordinator": "coordinator", "bank": "party", "shop": "party", "alice": "user"}
    make_identities(Authority.create(root / "ours", "ours", days=2), root, roles)
    make_identities(Authority.create(root / "theirs", "theirs", days=2), root / "other", {"coordinator": "coordinator"})
    found = {name: Identity.load(root / name / "identity") for name in roles}
    return found | {"stranger": Identity.load(root / "other" / "coordinator" / "identity")}


def test_who_may_sign(members: dict[str, Identity], tmp_path: Path) -> None:
    ours = members["bank"].authority
    for name, role in (("coordinator", "coordinator"), ("bank", "party")):
        file = tmp_path / f"{name}.html"
        file.write_bytes(SignedPage.make(page_of(name, role), MemberKey(members[name])).to_bytes())
        assert is_report(file)
        assert name in SignedPage.load(file).verify(ours).signer
    for name in ("alice", "stranger"):
        with pytest.raises(ReceiptError):
            SignedPage.make(page_of(members[name].name), MemberKey(members[name])).verify(ours)
    fresh = SignedPage.make(PAGE, FreshKey())
    assert not fresh.verify().vouched
    with pytest.raises(ReceiptError, match="without certificate"):
        fresh.verify(ours)


@pytest.mark.parametrize(
    ("by", "name", "role"),
    [("shop", "bank", "party"), ("bank", "coordinator", "coordinator"), ("coordinator", "coordinator", "party")],
)
def test_nobody_signs_in_anothers_name(members: dict[str, Identity], by: str, name: str, role: str) -> None:
    """Each is a member that may sign reports of its own."""
    forged = SignedPage.make(page_of(name, role), MemberKey(members[by]))
    forged.verify()  # by whose key, without the authority, nobody says
    with pytest.raises(ReceiptError, match=f"says that it is by {role} '{name}', and .* '{by}' has signed it"):
        forged.verify(members["bank"].authority)


@pytest.mark.parametrize("times", [0, 2])
def test_a_page_says_once_who_signs_it(members: dict[str, Identity], times: int) -> None:
    page = PAGE.replace(SIGNER.format("bank", "party"), SIGNER.format("bank", "party") * times)
    with pytest.raises(ReceiptError, match="who signs it"):
        SignedPage.make(page, MemberKey(members["bank"]))
    signed = SignedPage(page.encode(), MemberKey(members["bank"]).signed(page.encode(), PURPOSE))
    with pytest.raises(ReceiptError, match="does not say once when"):
        SignedPage.parse(signed.to_bytes())


SIGNED = SignedPage.make(PAGE, FreshKey()).to_bytes()


@given(st.integers(0, len(SIGNED) - 1), st.integers(1, 255))
def test_no_byte_can_be_changed(place: int, by: int) -> None:
    changed = bytearray(SIGNED)
    changed[place] ^= by
    with pytest.raises(ReceiptError):
        SignedPage.parse(bytes(changed)).verify()


def test_nothing_can_be_added_or_taken_away(tmp_path: Path) -> None:
    for changed in (
        SIGNED + b"<p>more</p>", b"<p>more</p>" + SIGNED, SIGNED[:-30], SIGNED.replace(b"well", b""), PAGE.encode(),
        SIGNED + SIGNED, b"",
    ):  # fmt: skip
        with pytest.raises(ReceiptError):
            SignedPage.parse(changed).verify()
    with pytest.raises(ReceiptError):
        SignedPage.make("<html></html>", FreshKey())
    with pytest.raises(ReceiptError):
        SignedPage.make(PAGE + MARK.format("2001"), FreshKey())
    with pytest.raises(ReceiptError, match="cannot be read"):
        SignedPage.load(tmp_path / "nothing.html")
    assert not is_report(tmp_path / "nothing.html")


def test_the_command_writes_what_audit_verifies(tmp_path: Path) -> None:
    make_identities(Authority.create(tmp_path / "ours", "ours", days=2), tmp_path, {"coordinator": "coordinator"})
    config, out = tmp_path / "coordinator" / "coordinator.toml", tmp_path / "report.html"
    config.write_text('listen = "127.0.0.1:0"\n')
    run = CliRunner().invoke
    made = run(app, ["report", str(config), "--out", str(out), "--from", "2026-01-01", "--to", "2026-01-31"])
    assert made.exit_code == 0, made.output
    authority = tmp_path / "coordinator" / "identity" / "ca.pem"
    found = run(app, ["audit", "verify", str(out), "--authority", str(authority)])
    assert found.exit_code == 0, found.output
    assert "coordinator 'coordinator'" in found.output
    told = json.loads(run(app, ["audit", "verify", str(out), "--json"]).output)
    assert (told["verified"], told["vouched"]) == (True, False)
    out.write_bytes(out.read_bytes().replace(b"None.", b"Some.", 1))
    changed = run(app, ["audit", "verify", str(out)])
    assert changed.exit_code == 1
    assert "NO" in changed.output
    assert json.loads(run(app, ["audit", "verify", str(out), "--json"]).stdout)["verified"] is False
    assert run(app, ["report", str(config), "--from", "soon"]).exit_code == 1
    assert run(app, ["report", str(config), "--out", str(tmp_path)]).exit_code == 1


def test_a_period() -> None:
    period = Period.read("2026-01-01", "2026-01-31")
    assert (period.first, period.last) == (date(2026, 1, 1), date(2026, 1, 31))
    assert period.has(1767225600.0)
    assert not period.has(1767225599.0)
    assert period.has(1769903999.0)
    assert not period.has(1769904000.0)
    last = Period.read("", "")
    assert (last.last - last.first).days == DAYS
    for first, end in (("yesterday", ""), ("", "2026-13-01"), ("2026-02-01", "2026-01-01"), ("", "0001-01-01")):
        with pytest.raises(DataError):
            Period.read(first, end)


def test_tables_of_several_jobs_add_up() -> None:
    def sent(receiver: str, kind: str) -> DisclosureRow:
        return DisclosureRow("coordinator", receiver, kind, 1, 10, "clear", "something")

    one = learnt([sent("shop", "StartForest")], Roles("bank", False, "alice"))
    other = learnt([sent("shop", "StartForest"), sent("mill", "SealedRequest")], Roles("bank", True, "alice"))
    both = Matrix({}, {}).added(one).added(other)
    assert both.columns == {"parties": ("mill", "shop")}
    assert (both.rows["labels"]["parties"].count, both.rows["labels"]["parties"].bytes) == (2, 20)
    assert both.rows["answers"]["parties"].is_sealed, "sealed in one of them, sealed in both"
