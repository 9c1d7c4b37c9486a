"""``woodlot provision``: keys, certificates and start-up kits for the organisations of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import AsJson, print_json, reporting
from woodlot.cli._confirm import confirmed

if TYPE_CHECKING:
    from woodlot.identity.certificates import CertificateRequest


def provision(
    config: Annotated[Path, typer.Argument(metavar="FEDERATION.TOML", help="Who takes part; woodlot new writes one.")],
    requests: Annotated[
        list[Path] | None, typer.Argument(metavar="REQUEST...", help="Requests of organisations, from woodlot join.")
    ] = None,
    fingerprint: Annotated[
        list[str] | None,
        typer.Option(metavar="HEX", help="Fingerprint that an organisation has read out; do not ask. May be repeated."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long certificates are valid.")] = 365,
    as_json: AsJson = False,
) -> None:
    """Provision a federation: sign the organisations' requests, and write a start-up kit for each (operator).

    Organisations with `here = true` get their keys and settings at once. Run it again when a request has come, when the
    file has changed, or to renew certificates.

    Example: `woodlot provision federation.toml shop-request.pem`
    """
    with reporting(as_json):
        from woodlot.identity.certificates import read_file
        from woodlot.service.federation_file import FederationConfig
        from woodlot.service.kits import Operator, grouped, read_requests

        operator = Operator(FederationConfig.load(config), config.absolute().parent, days=days)
        asked = {}
        for path in requests or ():
            found = read_requests(read_file(path, "name the file that the organisation sent"), str(path))
            asked[operator.asked_for(found, str(path))] = found
        for name, found in asked.items():  # all are compared before any is signed
            _compare(name, found, fingerprint or [])
        for name, found in asked.items():
            operator.sign(name, found)
        here, kits = operator.join_here(), operator.write_kits()
    organisations: dict[str, dict[str, Any]] = {}
    for name, done in here.items():
        organisations[name] = {
            "here": True,
            "folder": str(done.folder),
            "new_files": [str(path) for path in done.written],
        }
    for name, (path, signed) in kits.items():
        organisations[name] = {"here": False, "kit": str(path), "signed": signed}
    if as_json:
        authority = operator.authority.fingerprint
        print_json({"kind": "provision", "federation": operator.config.name, "authority": authority,
                    "organisations": organisations})  # fmt: skip
        return
    for name, one in organisations.items():
        _tell(name, one)
    typer.echo("")
    typer.echo("The authority's fingerprint, which you read out to each organisation over another channel:")
    typer.echo(f"  {grouped(operator.authority.fingerprint)}")
    authority_folder = operator.config.authority
    typer.echo(
        f"Keep {authority_folder} to yourself. Renew its list of revocations within {operator.config.list_days} days:"
    )
    typer.echo(f"  woodlot identity revocations {authority_folder} --renew")


def _compare(name: str, found: list[CertificateRequest], said: list[str]) -> None:
    """Go on only where the organisation has read out this fingerprint."""
    from woodlot.exceptions import IdentityError
    from woodlot.service.kits import grouped, requests_fingerprint

    own = requests_fingerprint(found)
    if any("".join(one.split()).lower() == own for one in said):
        return
    if said:
        raise IdentityError(
            f"the request of {name} has the fingerprint {grouped(own)}, which is none of those given; somebody may "
            "have put another request in its place: have it read out again"
        )
    typer.echo(f"{name} asks for: {', '.join(str(one.subject) for one in found)}", err=True)
    typer.echo(f"fingerprint  {grouped(own)}", err=True)
    confirmed("Did the organisation read you this fingerprint, and shall it be signed?")


def _tell(name: str, one: dict[str, Any]) -> None:
    if one["here"]:
        typer.echo(f"{name}: runs here, in {one['folder']}")
        for path in one["new_files"]:
            typer.echo(f"  new: {path}")
    elif one["signed"]:
        typer.echo(f"{name}: send {one['kit']} to it; there: woodlot join {Path(one['kit']).name}")
    else:
        typer.echo(
            f"{name}: not signed yet. There: woodlot join --as {name}; it sends you {name}-request.pem, then here:"
        )
        typer.echo(f"  woodlot provision FEDERATION.TOML {name}-request.pem")
