"""``woodlot join``: an organisation's side of provisioning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from woodlot.cli._client import AsJson, print_json, reporting
from woodlot.cli._confirm import confirmed

if TYPE_CHECKING:
    from woodlot.service.kits import Joined, KitFacts


def join(
    kit: Annotated[Path | None, typer.Argument(metavar="KIT", help="The kit that the operator sent.")] = None,
    organisation: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Without a kit: make keys and a request under this name.")
    ] = None,
    user: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --as: somebody here who orders jobs. May be repeated."),
    ] = None,
    party: Annotated[bool, typer.Option("--party/--no-party", help="With --as: whether there is data here.")] = True,
    coordinator: Annotated[bool, typer.Option("--coordinator", help="With --as: run the coordinator here.")] = False,
    helper: Annotated[bool, typer.Option("--helper", help="With --as: run the helper here, not a party.")] = False,
    key_service: Annotated[
        bool, typer.Option("--key-service", help="With --as: run the key service here, not a party.")
    ] = False,
    folder: Annotated[Path | None, typer.Option(help="The organisation's folder; its name if omitted.")] = None,
    authority: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="Fingerprint of the authority that the operator has read out; do not ask."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Join a federation: make keys and a request for the operator, or take the kit that comes back.

    Private keys are made here and stay here. Settings and the start script are written here, too; files that exist are
    not changed.

    Examples: `woodlot join --as shop`, then `woodlot join shop.kit`
    """
    with reporting(as_json):
        from woodlot.exceptions import ConfigError
        from woodlot.service.federation_file import OrganisationConfig
        from woodlot.service.kits import Joined, check_same, make_requests, read_kit
        from woodlot.service.kits import join as take

        if (kit is None) == (organisation is None):
            raise ConfigError("Name either a kit, or with --as the organisation that is to join.")

        def trusts(found: KitFacts) -> None:
            if authority is None:
                _ask(found)
            else:
                check_same(authority, found.fingerprint, f"the authority of {found.federation}")

        if organisation is not None:
            own = OrganisationConfig(
                coordinator=coordinator, party=party, helper=helper, key_service=key_service, users=tuple(user or ())
            )
            own.check_apart(organisation)
            members = own.members(organisation)
            if not members:
                raise ConfigError("An organisation needs a party, a user or the coordinator.")
            root = Path(organisation) if folder is None else folder
            done = Joined(root, *make_requests(root, organisation, members), ())
        elif kit is not None:
            found = read_kit(kit)
            if authority is not None:  # also where the folder trusts it already, and nobody would be asked
                trusts(found)
            done = take(kit, Path(found.organisation) if folder is None else folder, trusts)
    _report(done, as_json)


def _ask(found: KitFacts) -> None:
    from woodlot.service.kits import grouped

    typer.echo(
        f"{found.organisation} joins the federation {found.federation}; coordinator {found.coordinator}", err=True
    )
    typer.echo(f"authority's fingerprint  {grouped(found.fingerprint)}", err=True)
    confirmed("Did the operator read you this fingerprint? Whoever has that key decides whom you trust.")


def _report(done: Joined, as_json: bool) -> None:
    from woodlot.service.kits import grouped

    if as_json:
        print_json(
            {
                "kind": "join",
                "folder": str(done.folder),
                "request": None if done.request is None else str(done.request),
                "fingerprint": done.fingerprint or None,
                "new_files": [str(path) for path in done.written],
            }
        )
        return
    if done.request is not None:
        typer.echo(f"Send {done.request} to the operator, and read out its fingerprint over another channel:")
        typer.echo(f"  {grouped(done.fingerprint)}")
        typer.echo("When the kit has come: woodlot join KIT")
        return
    for path in done.written:
        typer.echo(f"new: {path}")
    if any(path.name == "party.toml" for path in done.written):
        typer.echo("Name your table in party.toml, and read its policy: what it allows is for you to decide.")
    if (done.folder / "start.sh").exists():
        typer.echo(f"Start with: sh {done.folder / 'start.sh'}")
