"""``woodlot identity`` as operator and members use it, through the app itself."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from checked_json import checked
from click.testing import Result
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from woodlot.cli import app
from woodlot.identity.identity import Identity


def run(*arguments: str | Path, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, ["identity", *map(str, arguments)], input=answer)


def succeed(*arguments: str | Path, answer: str | None = None) -> str:
    done = run(*arguments, answer=answer)
    assert done.exit_code == 0, done.output
    return done.stdout


def told(*arguments: str | Path) -> dict[str, Any]:
    result = checked(["identity", *arguments], json.loads(succeed(*arguments, "--json")))
    assert isinstance(result, dict)
    return result


def fail(*arguments: str | Path, answer: str | None = None) -> str:
    """Run a command that must be refused, in one line and without a result."""
    done = run(*arguments, answer=answer)
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    assert done.stderr.startswith("woodlot: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def grouped(fingerprint: str) -> str:
    return " ".join(fingerprint[at : at + 8] for at in range(0, 64, 8))


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    succeed("init", tmp_path / "authority", "--federation", "north")
    return tmp_path / "authority"


def join(authority: Path, role: str, name: str) -> Path:
    folder = authority.parent / name
    succeed("request", folder, "--role", role, "--name", name)
    succeed("sign", authority, folder / "request.pem", "--yes", "--out", folder / "sent-back.pem")
    succeed("install", folder, folder / "sent-back.pem")
    return folder


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_from_nothing_to_an_identity_and_back(tmp_path: Path) -> None:
    authority, folder = tmp_path / "authority", tmp_path / "bank"
    made = told("init", authority, "--federation", "north")
    assert (made["kind"], made["federation"]) == ("authority", "north")
    assert 3640 < made["days_left"] <= 3650
    assert stat.S_IMODE((authority / "ca-key.pem").stat().st_mode) == 0o600

    asked = told("request", folder, "--role", "party", "--name", "bank")
    assert asked["request"] == str(folder / "request.pem")
    assert stat.S_IMODE((folder / "key.pem").stat().st_mode) == 0o600
    key = (folder / "key.pem").read_bytes()

    signed = run("sign", authority, folder / "request.pem", "--days", "30", "--json", answer="y\n")
    assert signed.exit_code == 0
    for shown in ("party", "bank", grouped(asked["fingerprint"])):
        assert shown in signed.stderr
    result = json.loads(signed.stdout)
    assert (result["role"], result["name"], result["fingerprint"]) == ("party", "bank", asked["fingerprint"])
    assert result["days_left"] in (29, 30)
    assert result["certificate"] == str(folder / "certificate.pem")

    installed = told("install", folder, folder / "certificate.pem")
    assert installed["authority"] == made["fingerprint"]
    assert (folder / "key.pem").read_bytes() == key

    identity = Identity.load(folder)
    shown = told("show", folder)
    assert shown == {
        "kind": "identity",
        "role": "party",
        "name": "bank",
        "fingerprint": identity.fingerprint,
        "serial": f"{identity.serial:x}",
        "not_before": shown["not_before"],
        "not_after": identity.expires.isoformat(),
        "days_left": result["days_left"],
        "key_and_certificate_match": True,
        "problem": None,
    }
    revoked = told("revoke", authority, "bank")
    assert revoked["number"] == 2
    assert [one["serial"] for one in revoked["revoked"]] == [shown["serial"]]
    listed = told("show", authority)
    assert [(one["name"], one["state"]) for one in listed["certificates"]] == [("bank", "revoked")]


def test_every_step_names_the_next_one(tmp_path: Path) -> None:
    authority, folder = tmp_path / "authority", tmp_path / "bank"
    assert "woodlot identity request FOLDER" in succeed("init", authority, "--federation", "north")
    asked = succeed("request", folder, "--role", "party", "--name", "bank")
    assert f"woodlot identity install {folder} CERTIFICATE" in asked
    signed = succeed("sign", authority, folder / "request.pem", "--yes")
    assert "woodlot identity install FOLDER certificate.pem" in signed
    installed = succeed("install", folder, folder / "certificate.pem")
    fingerprint = grouped(told("show", authority)["fingerprint"])
    assert fingerprint in signed
    assert fingerprint in installed
    shown = succeed("show", folder)
    assert "key and certificate match  yes" in shown
    assert "problem" not in shown
    assert "valid       party        bank" in succeed("show", authority)
    assert f"Give {authority / 'revoked.pem'} to the coordinator" in succeed("revoke", authority, "bank")
    assert "was revoked before; nothing has changed" in succeed("revoke", authority, "bank")
    assert told("show", authority)["revocation_list"] == 2


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_without_a_yes_nothing_is_signed(authority: Path, answer: str) -> None:
    folder = authority.parent / "bank"
    succeed("request", folder, "--role", "party", "--name", "bank")
    before = snapshot(authority.parent)
    done = run("sign", authority, folder / "request.pem", answer=answer)
    assert (done.exit_code, done.stdout) == (1, "")
    assert snapshot(authority.parent) == before


def test_a_taken_name_is_refused_unless_it_is_replaced(authority: Path) -> None:
    bank = join(authority, "party", "bank")
    second = authority.parent / "second"
    succeed("request", second, "--role", "party", "--name", "bank")
    before = snapshot(authority.parent)
    assert "'bank' is in use by party 'bank'" in fail("sign", authority, second / "request.pem", "--yes")
    assert snapshot(authority.parent) == before
    assert "certificate.pem" in succeed("sign", authority, bank / "request.pem", "--yes")  # renewal, over the old one
    asked = run("sign", authority, second / "request.pem", "--replace", answer="n\n")
    assert asked.stderr.count("This revokes party 'bank', serial ") == 2
    assert "to the coordinator" in succeed("sign", authority, second / "request.pem", "--replace", "--yes")
    states = [one["state"] for one in told("show", authority)["certificates"]]
    assert states == ["superseded", "superseded", "valid"]


def test_a_certificate_never_overwrites_another_file(authority: Path) -> None:
    bank, shop = join(authority, "party", "bank"), authority.parent / "shop"
    succeed("request", shop, "--role", "party", "--name", "shop")
    for target in (bank / "certificate.pem", bank / "key.pem", bank / "request.pem"):
        before = snapshot(authority.parent)
        message = fail("sign", authority, shop / "request.pem", "--yes", "--out", target)
        assert "name another file with --out" in message
        assert snapshot(authority.parent) == before
    assert "is not a folder" in fail(
        "sign", authority, shop / "request.pem", "--yes", "--out", bank / "no" / "where.pem"
    )


def test_wrong_files_are_refused_by_name(authority: Path) -> None:
    bank = join(authority, "party", "bank")
    shop = authority.parent / "shop"
    succeed("request", shop, "--role", "party", "--name", "shop")
    before = snapshot(authority.parent)
    assert "bank/certificate.pem cannot be read" in fail("sign", authority, bank / "certificate.pem", "--yes")
    assert "nothing.pem is missing" in fail("sign", authority, bank / "nothing.pem", "--yes")
    assert "ca-key.pem is missing; make an authority" in fail("sign", bank, bank / "request.pem", "--yes")
    assert "is not of the key beside it" in fail("install", shop, bank / "sent-back.pem")
    assert "holds a key already" in fail("request", bank, "--role", "user", "--name", "other")
    assert "cannot be named" in fail("request", authority.parent / "x", "--role", "user", "--name", "coordinator")
    assert "not an empty folder" in fail("init", authority, "--federation", "north")
    assert "neither a name nor a serial number" in fail("revoke", authority, "shop")
    assert "does not exist" in fail("show", authority.parent / "nowhere")
    assert "neither a certificate nor a request" in fail("show", bank / "key.pem")
    assert "request.pem is missing" in fail("show", authority.parent)
    assert snapshot(authority.parent) == before


def test_show_tells_every_kind_of_file(authority: Path) -> None:
    bank = join(authority, "party", "bank")
    shop = authority.parent / "shop"
    asked = told("request", shop, "--role", "user", "--name", "shop")
    assert told("show", shop) == {key: asked[key] for key in ("kind", "role", "name", "fingerprint")}
    assert told("show", shop / "request.pem") == told("show", shop)
    for path in (bank / "certificate.pem", bank / "sent-back.pem"):
        shown = told("show", path)
        assert (shown["kind"], shown["name"], shown["problem"]) == ("certificate", "bank", None)
    shown = told("show", authority / "ca.pem")
    assert (shown["kind"], shown["federation"]) == ("authority", "north")


def troubled(path: Path) -> dict[str, Any]:
    """What is shown of an identity that cannot be used."""
    done = run("show", path, "--json")
    assert (done.exit_code, done.stderr) == (1, "")
    assert "problem" in run("show", path).stdout
    result = json.loads(done.stdout)
    assert isinstance(result, dict)
    return result


def test_show_says_why_an_identity_cannot_be_used(authority: Path) -> None:
    bank, shop = join(authority, "party", "bank"), join(authority, "party", "shop")
    succeed("revoke", authority, "shop")
    (shop / "revoked.pem").write_bytes((authority / "revoked.pem").read_bytes())
    shown = troubled(shop)
    assert shown["key_and_certificate_match"] is True
    assert "is revoked" in shown["problem"]

    (bank / "key.pem").chmod(0o644)
    shown = troubled(bank)
    assert shown["key_and_certificate_match"] is None
    assert f"chmod 600 {bank / 'key.pem'}" in shown["problem"]
    (bank / "key.pem").chmod(0o600)

    (bank / "key.pem").write_bytes((shop / "key.pem").read_bytes())
    shown = troubled(bank)
    assert shown["key_and_certificate_match"] is False
    assert "NO" in run("show", bank).stdout

    (bank / "ca.pem").unlink()
    (bank / "key.pem").unlink()
    assert "key.pem is missing" in troubled(bank)["problem"]


def test_show_says_that_it_has_expired(authority: Path) -> None:
    issuer = load_pem_private_key((authority / "ca-key.pem").read_bytes(), None)
    assert isinstance(issuer, ec.EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bank")]))
        .issuer_name(x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes()).subject)
        .public_key(issuer.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=3))
        .not_valid_after(now - timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier("woodlot://party/bank")]), critical=False
        )
        .sign(issuer, SHA256())
    )
    path = authority.parent / "old.pem"
    path.write_bytes(certificate.public_bytes(Encoding.PEM))
    shown = troubled(path)
    assert "has expired" in shown["problem"]
    assert shown["days_left"] < 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["init", "a"], "--federation"),
        (["request", "a", "--name", "bank"], "--role"),
        (["request", "a", "--role", "owner", "--name", "bank"], "owner"),
        (["sign", "a", "b", "--days", "0"], "--days"),
        (["revoke", "a"], "NAME|SERIAL"),
        (["harvest"], "harvest"),
    ],
)
def test_a_wrong_argument_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert named in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["", "init", "request", "sign", "install", "show", "revoke"])
def test_help_fits_a_narrow_terminal(command: str) -> None:
    shown = succeed(*([command] if command else []), "--help")
    assert max(map(len, shown.splitlines())) <= 80
    wanted = ["init", "request", "sign", "install", "show", "revoke"] if not command else ["--json"]
    assert all(name in shown for name in wanted)
