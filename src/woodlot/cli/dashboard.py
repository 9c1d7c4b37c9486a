"""``woodlot dashboard``: a page about the coordinator or the parties whose folders are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from woodlot.exceptions import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from woodlot.dashboard.server import Server
    from woodlot.service.config import CoordinatorConfig, PartyConfig


def dashboard(
    configs: Annotated[
        list[Path], typer.Argument(metavar="CONFIG", help="coordinator.toml, party.toml, or several of them.")
    ],
    identity: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A user's key: the page may then act in this user's name.")
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where orders of that user go, if not as configured.")
    ] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to serve the page.")] = "127.0.0.1:0",
    user: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Serve over TLS to this user's certificate, also beyond this machine; repeat it."
        ),
    ] = None,
) -> None:
    """Show jobs, models and who saw what, as the coordinator or a party knows it.

    Reads state folders only, also while the services run. On this machine the printed address opens the page once.
    """
    import threading

    from woodlot.cli._service import LogLevel, start_logging

    start_logging("text", LogLevel.warning)
    with open_dashboard(configs, identity, coordinator, listen, tuple(user or ())) as server:
        server.start()
        typer.echo(f"Woodlot's dashboard: {server.url}")
        typer.echo("Ctrl-C ends it.")
        threading.Event().wait()


def open_dashboard(
    configs: list[Path], identity: Path | None, coordinator: str | None, listen: str, users: tuple[str, ...] = ()
) -> Server:
    """The dashboard of some roles, ready to be started.

    Parameters
    ----------
    configs : list of Path
        Configuration files of a coordinator and of parties.
    identity : Path, optional
        Folder of the user in whose name the page may act.
    coordinator : str, optional
        ``host:port`` for that user's orders.
    listen : str
        ``host:port`` of the page.
    users : tuple of str
        Users who may look over TLS.
    """
    try:
        from woodlot.dashboard.actions import Actions
        from woodlot.dashboard.app import Pages
        from woodlot.dashboard.party_view import PartyView
        from woodlot.dashboard.server import Server
        from woodlot.dashboard.views import CoordinatorView
    except ImportError as error:
        raise MissingExtraError(
            f"the dashboard needs more packages ({error.name}): pip install 'woodlot[dashboard]'", name=error.name
        ) from None
    from woodlot.identity.identity import Identity, Trust
    from woodlot.service.config import CoordinatorConfig

    read = [read_config(path) for path in configs]
    coordinators = [config for config in read if isinstance(config, CoordinatorConfig)]
    if len(coordinators) > 1:
        raise ConfigError("a dashboard shows one federation: name one coordinator.toml only")
    parties = [PartyView(config) for config in read if not isinstance(config, CoordinatorConfig)]
    view = CoordinatorView(coordinators[0]) if coordinators else None
    actions = None
    if identity is not None:
        actions = Actions(coordinator or _address(read), identity)
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--listen must be HOST:PORT, not {listen!r}")
    own = Identity.load(read[0].identity) if users else None
    trust = None
    if own is not None:
        revoked = coordinators[0].revocation_file if coordinators else read[0].identity / "revoked.pem"
        trust = Trust(own.authority, revoked if revoked.exists() else None)
    return Server(Pages(view, parties, actions).app, host, int(port), identity=own, trust=trust, users=users)


def read_config(path: Path) -> CoordinatorConfig | PartyConfig:
    """A configuration of either role: only a party has tables."""
    from woodlot.service.config import CoordinatorConfig, PartyConfig
    from woodlot.service.settings import read_toml

    return PartyConfig.load(path) if "tables" in read_toml(path) else CoordinatorConfig.load(path)


def _address(configs: list[CoordinatorConfig | PartyConfig]) -> str:
    from woodlot.service.config import PartyConfig

    for config in configs:
        if isinstance(config, PartyConfig):
            return str(config.coordinator)
    raise ConfigError("where do orders go? Add --coordinator HOST:PORT")
