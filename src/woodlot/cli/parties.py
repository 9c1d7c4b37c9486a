"""``woodlot parties``: who belongs to the federation, and who is there."""

from __future__ import annotations

from woodlot.cli._client import (
    Access,
    AsJson,
    CoordinatorOption,
    IdentityOption,
    JobFile,
    JobFileOption,
    print_json,
    reach,
    reporting,
)


def parties(
    coordinator: CoordinatorOption = None,
    identity: IdentityOption = None,
    job: JobFileOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the parties of the federation, and since when each is connected."""
    with reporting(as_json), reach(Access.find(coordinator, identity, JobFile.read(job))) as client:
        known = client.parties()
    if as_json:
        print_json(
            {"parties": [{"name": p, "connected": since is not None, "since": since} for p, since in known.items()]}
        )
        return
    from rich.text import Text

    from woodlot.cli import _show as show

    console = show.stdout()
    if not known:
        console.print("No party has connected yet. A party joins with: woodlot party party.toml")
        return
    rows = [
        (p, Text("away", style="yellow") if since is None else Text("connected", style="green"), show.moment(since))
        for p, since in known.items()
    ]
    console.print(show.table(("party", "state", "since"), rows))
