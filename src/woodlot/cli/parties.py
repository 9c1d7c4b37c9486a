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
    """Show the parties of the federation, since when each is connected, and whether a key is used twice."""
    with reporting(as_json), reach(Access.find(coordinator, identity, JobFile.read(job))) as client:
        known = client.party_facts()
    if as_json:
        shown = [
            {
                "name": party.name,
                "connected": party.since is not None,
                "since": party.since,
                "alarm": party.alarm or None,
                "alarm_at": party.alarm_at,
            }
            for party in known
        ]
        print_json({"parties": shown})
        return
    from rich.text import Text

    from woodlot.cli import _show as show

    console = show.stdout()
    if not known:
        console.print("No party has connected yet. A party joins with: woodlot party party.toml")
        return
    rows = [
        (
            party.name,
            Text("away", style="yellow") if party.since is None else Text("connected", style="green"),
            show.moment(party.since),
        )
        for party in known
    ]
    console.print(show.table(("party", "state", "since"), rows))
    for party in known:
        if party.alarm:
            said = (
                f"{party.name}: {party.alarm}, last at {show.moment(party.alarm_at)}. If the party was not just moved "
            )
            console.print(Text(f"{said}or restarted, its key was copied: revoke its certificate.", style="red"))
