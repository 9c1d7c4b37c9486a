"""Start-up kits under attack: what somebody on the machine, on the way, or at the operator's desk could gain."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from test_kits import SHOP, asked, believe, federation, refuse, signed_kit
from typer.testing import CliRunner

from woodlot.cli import app
from woodlot.exceptions import IdentityError
from woodlot.identity import certificates as files
from woodlot.identity.authority import Authority
from woodlot.service.kits import Operator, join, make_requests, read_kit


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    (tmp_path / "a").mkdir()
    return federation(tmp_path / "a")


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A machine on which whatever is made may be changed by everybody."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_nobody_else_can_put_a_policy_or_a_script_in_place(tmp_path: Path) -> None:
    """Keys were safe under any umask, and the folders with party.toml and start.sh were not."""
    (tmp_path / "a").mkdir(mode=0o700)
    operator = federation(tmp_path / "a")
    folder = tmp_path / "b" / "shop"
    join(signed_kit(operator, folder), folder, believe)
    operator.join_here()
    for path in [*tmp_path.rglob("*")]:
        mode = path.stat().st_mode & 0o777
        assert mode == 0o700 if path.is_dir() else not mode & 0o022, path


def test_a_fingerprint_that_is_given_is_compared_always(operator: Operator, tmp_path: Path) -> None:
    """Also where the folder trusts the kit's authority already: what is typed is not passed over in silence."""
    folder = tmp_path / "b" / "shop"
    kit = signed_kit(operator, folder)
    join(kit, folder, believe)
    right, wrong = operator.authority.fingerprint, "0" * 64
    for given, code in ((right, 0), (wrong, 1)):
        done = CliRunner().invoke(app, ["join", str(kit), "--folder", str(folder), "--authority", given])
        assert done.exit_code == code, done.output


def test_a_kit_brings_certificates_of_the_authority_that_was_compared(operator: Operator, tmp_path: Path) -> None:
    """The fingerprint on the telephone is that of the kit's authority; the certificates in it must be of the same."""
    folder, other = tmp_path / "b" / "shop", Authority.create(tmp_path / "other", "loans", days=30)
    path, _ = make_requests(folder, "shop", SHOP)
    signed = {one.subject.uri: other.sign(one, days=1).decode() for one in asked(path)}
    with pytest.raises(IdentityError, match="not signed by this federation's authority"):
        join(operator._write("shop", signed), folder, believe)
    assert not list(folder.rglob("ca.pem"))


def test_one_key_for_two_members_signs_neither(operator: Operator, tmp_path: Path) -> None:
    path, _ = make_requests(tmp_path / "shop", "shop", SHOP)
    party, user = asked(path)
    twin = files.CertificateRequest(user.subject, party.key, party.kem)
    with pytest.raises(IdentityError, match="one key"):
        operator.sign("shop", [party, twin])
    assert not operator.authority.issued()


def test_an_older_kit_brings_back_neither_a_revoked_nor_an_expired_certificate(
    operator: Operator, tmp_path: Path
) -> None:
    folder = tmp_path / "b" / "shop"
    kit = signed_kit(operator, folder)
    join(kit, folder, believe)
    operator.authority.revoke("shop")
    newer = operator.authority.revocations().pem
    (folder / "party" / "identity" / files.REVOKED).write_bytes(newer)
    with pytest.raises(IdentityError, match="revoked"):
        join(kit, folder, refuse)
    assert (folder / "party" / "identity" / files.REVOKED).read_bytes() == newer


def test_the_operator_does_not_send_out_revoked_certificates_again(operator: Operator, tmp_path: Path) -> None:
    signed_kit(operator, tmp_path / "b" / "shop")
    assert operator.write_kits()["shop"][1]
    operator.authority.revoke("carol")
    path, signed = operator.write_kits()["shop"]
    assert not signed
    assert not read_kit(path).certificates


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("organisation", "../../x"),
        ("organisation", "shop\n"),
        ("organisation", "sh$(id)op"),
        ("users", ("../../x",)),
        ("users", ("*",)),
        ("all_users", ("*",)),
        ("all_users", ('a"]\nreceive = ["*',)),
        ("parties", ('bank"]',)),
        ("federation", "loans\nrm -rf ~"),
        ("coordinator", "host:7443\n[policy]"),
    ],
)
def test_names_in_a_kit_lead_nowhere(operator: Operator, tmp_path: Path, field: str, value: object) -> None:
    """Not even an operator that lies gets out of the folder, or into a setting or a script."""
    facts = msgspec.structs.replace(read_kit(operator.write_kits()["shop"][0]), **{field: value})
    operator._facts = lambda name, signed: facts  # type: ignore[method-assign]
    kit, folder = operator._write("shop", {}), tmp_path / "deep" / "b" / "shop"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(IdentityError, match="is not a kit"):
        join(kit, folder, believe)
    assert sorted(tmp_path.rglob("*")) == before
