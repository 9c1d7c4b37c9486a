"""``woodlot identity``: keys and certificates, for members and for the federation's operator."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._confirm import confirmed
from woodlot.cli._service import LogLevel, LogLevelOption, serve_member

if TYPE_CHECKING:
    from cryptography import x509

    from woodlot.identity.authority import Authority, Issued
    from woodlot.identity.certificates import CertificateRequest

identity = typer.Typer(
    name="identity",
    no_args_is_help=True,
    help="Make, sign, show and revoke the identities of a federation's members.",
    epilog="Operator: init, sign, revoke, keys. Member: request, install. Both: show, revocations.",
)


class RoleName(StrEnum):
    """What a member of a federation can be."""

    party = "party"
    user = "user"
    coordinator = "coordinator"


AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
AuthorityFolder = Annotated[Path, typer.Argument(metavar="AUTHORITY", help="Folder of the federation's authority.")]


@identity.command()
def init(
    authority: AuthorityFolder,
    federation: Annotated[str, typer.Option(help="Name of the federation.")],
    days: Annotated[int, typer.Option(min=1, help="How long the authority is valid.")] = 3650,
    list_days: Annotated[int, typer.Option(min=1, help="How long a list of revocations is good.")] = 7,
    as_json: AsJson = False,
) -> None:
    """Make the authority of a new federation (operator)."""
    from woodlot.identity.authority import AUTHORITY_KEY, Authority

    made = Authority.create(authority, federation, days=days, list_days=list_days)
    _result(
        {"kind": "authority", "federation": made.federation, **_facts(made.certificate), "folder": str(authority)},
        as_json,
        f"Keep {authority / AUTHORITY_KEY} to yourself. Each member now runs:",
        "  woodlot identity request FOLDER --role party --name NAME",
        f"sends you FOLDER/request.pem, and you run: woodlot identity sign {authority} request.pem",
        f"The list of revocations is good for {list_days} days. Renew it in time, best by a timer:",
        f"  woodlot identity revocations {authority} --renew",
    )


@identity.command()
def request(
    folder: Annotated[Path, typer.Argument(help="Folder for the new identity.")],
    role: Annotated[RoleName, typer.Option(help="What you are in the federation.")],
    name: Annotated[str, typer.Option(help="What you are called: letters, digits, - and _.")],
    as_json: AsJson = False,
) -> None:
    """Make a key, and a request for the operator to sign (member)."""
    from woodlot.identity import certificates
    from woodlot.identity.identity import request as make_request

    made = make_request(folder, role.value, name)
    path = folder / certificates.REQUEST
    _result(
        {**_requested(made), "request": str(path)},
        as_json,
        f"Send {path} to the operator, who asks you for the fingerprint. What comes back goes to:",
        f"  woodlot identity install {folder} CERTIFICATE",
        f"{folder / certificates.KEY} stays here; nobody else ever needs it.",
    )


@identity.command()
def sign(
    authority: AuthorityFolder,
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="The request.pem of a member.")],
    days: Annotated[int, typer.Option(min=1, help="How long the certificate is valid.")] = 365,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write it; certificate.pem beside the request if left.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Revoke what has the same name or key.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; the fingerprint was compared.")] = False,
    as_json: AsJson = False,
) -> None:
    """Sign a member's request, after comparing its fingerprint with the member (operator)."""
    from woodlot.identity import certificates
    from woodlot.identity.authority import Authority

    pem = certificates.read_file(request, "name the file that the member sent")
    asked = certificates.CertificateRequest.parse(pem, str(request))
    signer = Authority.open(authority)
    target = request.parent / certificates.CERTIFICATE if out is None else out
    _check_target(target, asked)
    rivals = signer.rivals(asked, replace=replace)
    if not yes:
        _echo_facts(_requested(asked), err=True)
        for other in rivals:
            typer.echo(f"This revokes {other.subject}, serial {other.serial:x}.", err=True)
        confirmed("Did the member read you this fingerprint, and shall it be signed?")
    bundle = signer.sign(asked, days=days, replace=replace)
    certificates.write_file(target, bundle)
    _result(
        {
            "kind": "certificate",
            **_member(certificates.parse_certificate(bundle, str(target))),
            "certificate": str(target),
            "revoked": [f"{other.serial:x}" for other in rivals],
        },
        as_json,
        f"Send {target} back to the member, who runs: woodlot identity install FOLDER {target.name}",
        f"The authority's fingerprint, to compare: {_grouped(signer.fingerprint)}",
        *([_tell_coordinator(authority)] if rivals else []),
    )


@identity.command()
def install(
    folder: Annotated[Path, typer.Argument(help="Folder with the key.")],
    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="What the operator sent back.")],
    authority: Annotated[
        Path | None, typer.Argument(metavar="CA", help="The authority's ca.pem, if it is not in that file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put the signed certificate beside its key, after checking that they belong together (member)."""
    from woodlot.identity import certificates
    from woodlot.identity.identity import install as put

    made = put(folder, certificate, authority)
    issuer = certificates.parse_authority(made.authority, str(folder / certificates.AUTHORITY))
    trusted = certificates.fingerprint(certificates.public_key(issuer))
    _result(
        {
            "kind": "identity",
            **_member(certificates.parse_certificate(made.certificate, str(certificate))),
            "authority": trusted,
            "folder": str(folder),
        },
        as_json,
        "Compare the authority's fingerprint with the operator: whoever has that key decides whom you trust.",
    )


@identity.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="FOLDER_OR_FILE", help="Identity, authority, certificate, request.")],
    as_json: AsJson = False,
) -> None:
    """Show whose it is and until when it is valid; exits with 1 if it cannot be used."""
    from woodlot.exceptions import IdentityError
    from woodlot.identity import certificates
    from woodlot.identity.authority import AUTHORITY_KEY, Authority

    if not path.exists():
        raise IdentityError(f"{path} does not exist; name a folder or a file of woodlot identity")
    if path.is_file():
        facts = _file_facts(path)
    elif (path / AUTHORITY_KEY).exists():
        facts = _authority_facts(Authority.open(path))
    elif (path / certificates.CERTIFICATE).exists():
        facts = _folder_facts(path)
    else:
        facts = _file_facts(path / certificates.REQUEST)
    _result(facts, as_json)
    if facts.get("problem") is not None:
        raise typer.Exit(1)


@identity.command()
def revoke(
    authority: AuthorityFolder,
    name_or_serial: Annotated[str, typer.Argument(metavar="NAME|SERIAL", help="Whom, or which certificate.")],
    as_json: AsJson = False,
) -> None:
    """Revoke all certificates of a name, or one by its serial number (operator); there is no way back."""
    from woodlot.identity.authority import Authority

    signer = Authority.open(authority)
    revoked = signer.revoke(name_or_serial)
    number = signer.revocations().number
    if as_json:
        listed = [_issued_facts(one) | {"state": "revoked"} for one in revoked]
        typer.echo(json.dumps({"kind": "revocation", "number": number, "revoked": listed}, indent=2))
        return
    for one in revoked:
        typer.echo(f"revoked {one.subject}, serial {one.serial:x}")
    typer.echo(
        _tell_coordinator(authority) if revoked else f"{name_or_serial} was revoked before; nothing has changed."
    )


@identity.command()
def revocations(
    folder: Annotated[Path, typer.Argument(help="Folder of an identity or of the authority.")],
    renew: Annotated[bool, typer.Option("--renew", help="Sign the list again, good from now on (operator).")] = False,
    days: Annotated[int | None, typer.Option(min=1, help="With --renew: how long lists are good from now on.")] = None,
    import_from: Annotated[
        Path | None, typer.Option("--import", metavar="FILE", help="Take a newer list from this file (member).")
    ] = None,
    export_to: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write the list to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show, renew, import or export the list of revoked certificates; exits with 1 if it has ended.

    Example: woodlot identity revocations identity --import revoked.pem
    """
    from woodlot.exceptions import IdentityError
    from woodlot.identity import certificates
    from woodlot.identity.authority import AUTHORITY_KEY, Authority
    from woodlot.identity.identity import Identity, Trust

    problem: str | None = None
    if (folder / AUTHORITY_KEY).exists():
        if import_from is not None:
            raise IdentityError(f"{folder} is the authority's own folder: lists are made here; use --renew")
        authority = Authority.open(folder)
        present: certificates.Revocations | None = (
            authority.renew_revocations(days=days) if renew else authority.revocations()
        )
    else:
        if renew:
            raise IdentityError(f"{folder} is no authority's folder; the operator renews the list there")
        own = Identity.load(folder)
        trust = Trust(own.authority, folder / certificates.REVOKED, may_be_missing=True)
        if import_from is not None:
            trust.update(certificates.read_file(import_from, "name the list that the operator sent"))
        issuer = certificates.parse_authority(own.authority, str(folder / certificates.AUTHORITY))
        pem = trust.revocation_list()
        present = certificates.Revocations.parse(pem, issuer, "the list") if pem else None
    try:
        certificates.check_fresh(present)
    except IdentityError as error:
        problem = str(error)
    facts: dict[str, Any] = {"kind": "revocations", "problem": problem}
    if present is not None:
        left = {"not_after": present.expires.isoformat(), "days_left": _days_left(present.expires)}
        facts = {"kind": "revocations", "number": present.number, "entries": len(present.serials), **left} | facts
        if export_to is not None:
            certificates.write_file(export_to, present.pem)
    _result(facts, as_json, *([_tell_coordinator(folder)] if renew else []))
    if problem is not None:
        raise typer.Exit(1)


# --- what is said ---


@identity.command()
def keys(
    config: Annotated[Path, typer.Argument(help="The key service's configuration, a TOML file.")],
    log_level: LogLevelOption = LogLevel.info,
) -> None:
    """Run the key service of revocable forests: it holds shares, or makes keys of the paper's scheme."""
    serve_member(config, "key service", log_level)


def _result(facts: dict[str, Any], as_json: bool, *next_steps: str) -> None:
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    _echo_facts(facts)
    for line in ("", *next_steps) if next_steps else ():
        typer.echo(line)


def _echo_facts(facts: dict[str, Any], *, err: bool = False) -> None:
    words = {True: "yes", False: "NO", None: "unknown"}
    shown = {name: value for name, value in facts.items() if not (name in ("problem", "revoked") and not value)}
    width = max(map(len, shown))
    for name, value in shown.items():
        if name == "certificates":
            longest = max((len(one["name"]) for one in value), default=0)
            for one in value:
                typer.echo(
                    f"{one['state']:<10}  {one['role']:<11}  {one['name']:<{longest}}  until {one['not_after'][:10]}  "
                    f"serial {one['serial']}",
                    err=err,
                )
            continue
        if isinstance(value, bool) or value is None:
            value = words[value]
        elif isinstance(value, list):
            value = ", ".join(value)
        elif name in ("fingerprint", "authority"):
            value = _grouped(value)
        elif name in ("not_before", "not_after", "revocations_until"):
            value = f"{datetime.fromisoformat(value):%Y-%m-%d %H:%M} UTC"
        typer.echo(f"{name.replace('_', ' '):<{width}}  {value}", err=err)


def _grouped(fingerprint: str) -> str:
    """Eight digits at a time, as one reads them out on the telephone."""
    return " ".join(fingerprint[at : at + 8] for at in range(0, len(fingerprint), 8))


def _tell_coordinator(authority: Path) -> str:
    from woodlot.identity import certificates

    return f"Give {authority / certificates.REVOKED} to the coordinator, which tells the parties."


# --- what there is to say ---


def _facts(certificate: x509.Certificate) -> dict[str, Any]:
    from woodlot.identity import certificates

    return {
        "fingerprint": certificates.fingerprint(certificates.public_key(certificate)),
        "serial": f"{certificate.serial_number:x}",
        "not_before": certificate.not_valid_before_utc.isoformat(),
        "not_after": certificate.not_valid_after_utc.isoformat(),
        "days_left": _days_left(certificate.not_valid_after_utc),
    }


def _member(certificate: x509.Certificate) -> dict[str, Any]:
    from woodlot.identity import certificates

    subject = certificates.subject_of(certificate, "the certificate")
    return {"role": subject.role, "name": subject.name, **_facts(certificate)}


def _requested(request: CertificateRequest) -> dict[str, Any]:
    return {
        "kind": "request",
        "role": request.subject.role,
        "name": request.subject.name,
        "fingerprint": request.fingerprint,
    }


def _issued_facts(one: Issued) -> dict[str, Any]:
    return {
        "role": one.subject.role,
        "name": one.subject.name,
        "state": one.state,
        "fingerprint": one.fingerprint,
        "serial": f"{one.serial:x}",
        "not_after": one.expires.isoformat(),
        "days_left": _days_left(one.expires),
    }


def _authority_facts(authority: Authority) -> dict[str, Any]:
    from woodlot.exceptions import IdentityError
    from woodlot.identity import certificates

    problem = None
    try:
        certificates.check_time(authority.certificate, "the authority's own certificate")
        certificates.check_fresh(authority.revocations())
    except IdentityError as error:
        problem = str(error)
    return {
        "kind": "authority",
        "federation": authority.federation,
        **_facts(authority.certificate),
        "revocation_list": authority.revocations().number,
        "revocations_until": authority.revocations().expires.isoformat(),
        "certificates": [_issued_facts(one) for one in authority.issued()],
        "problem": problem,
    }


def _folder_facts(folder: Path) -> dict[str, Any]:
    """A member's folder: facts of its certificate, and whatever a service would refuse about it."""
    from woodlot.exceptions import IdentityError
    from woodlot.identity import certificates
    from woodlot.identity.identity import Identity, Trust

    path, revoked = folder / certificates.CERTIFICATE, folder / certificates.REVOKED
    certificate = certificates.parse_certificate(certificates.read_file(path, ""), str(path))
    belongs, problem = None, None
    try:
        key = certificates.read_key(folder / certificates.KEY, "the certificate cannot be used without it")
        belongs = key.public_key() == certificates.public_key(certificate)
        loaded = Identity.load(folder)
        trust = Trust(loaded.authority, revoked, may_be_missing=True)
        trust.admit(loaded.certificate)
        if loaded.role != "user":  # who takes orders needs a list that is good now
            trust.check_fresh()
    except IdentityError as error:
        problem = str(error)
    return {"kind": "identity", **_member(certificate), "key_and_certificate_match": belongs, "problem": problem}


def _file_facts(path: Path) -> dict[str, Any]:
    from woodlot.exceptions import IdentityError
    from woodlot.identity import certificates

    pem = certificates.read_file(path, "name a folder or a file of woodlot identity")
    if b"CERTIFICATE REQUEST" in pem:
        return _requested(certificates.CertificateRequest.parse(pem, str(path)))
    if b"BEGIN CERTIFICATE" not in pem:
        raise IdentityError(f"{path} holds neither a certificate nor a request; for a key, name its folder")
    certificate = certificates.parse_certificate(pem, str(path))
    problem = None
    try:
        certificates.check_time(certificate, "the certificate")
    except IdentityError as error:
        problem = str(error)
    if certificates.is_authority(certificate, str(path)):
        federation = certificates.federation_of(certificates.parse_authority(pem, str(path)))
        return {"kind": "authority", "federation": federation, **_facts(certificate), "problem": problem}
    return {"kind": "certificate", **_member(certificate), "problem": problem}


def _days_left(end: datetime) -> int:
    return (end - datetime.now(UTC)).days


def _check_target(path: Path, request: CertificateRequest) -> None:
    """Whatever is overwritten must be an earlier certificate of the same key."""
    from woodlot.exceptions import IdentityError
    from woodlot.identity import certificates

    if not path.parent.is_dir():
        raise IdentityError(f"{path.parent} is not a folder; name another with --out")
    if not path.exists():
        return
    try:
        known = certificates.parse_certificate(certificates.read_file(path, ""), str(path))
        same = certificates.public_key(known) == request.key
    except IdentityError:
        same = False
    if not same:
        raise IdentityError(f"{path} is there and not a certificate of this key; name another file with --out")
