"""The files that an organisation starts with. It writes them itself, from the facts of its kit.

A kit holds no script and no policy: whoever wrote these would run code beside the organisation's tables, or open them.
"""

from __future__ import annotations

import ipaddress
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from woodlot.jobs.policy import WRITTEN
from woodlot.service.settings import Address

MEMBER_FILES = {
    "helper": ("helper.toml", "party --role helper"),
    "key service": ("keys.toml", "identity keys"),
}
"""The configuration of helper and key service, and the command that runs each."""

_MEMBERS = {
    "helpers": "who may help or deal in encrypted and hidden trainings",
    "key_services": "who may keep the keys of encrypted forests",
}
_POLICY = {
    "train": "users who may train",
    "predict": "users who may predict",
}


def coordinator_settings(address: Address, revocations: str | None = None) -> str:
    """``coordinator.toml``."""
    host = address.host if _is_local(address.host) else "0.0.0.0"  # noqa: S104 - it is to be reached from elsewhere
    lines = [
        "# The coordinator. All settings: docs/configuration.md",
        f'listen = "{host}:{address.port}"',
        *([f"revocations = {json.dumps(revocations)}   # the operator's own list"] if revocations else []),
        'wait_for_parties = "1 h"',
        "",
        "# [monitor]",
        '# listen = "127.0.0.1:9464"   # health and metrics',
    ]
    return "\n".join(lines) + "\n"


def party_settings(
    federation: str, party: str, address: Address, users: Sequence[str], members: Mapping[str, Sequence[str]]
) -> str:
    """``party.toml``: where to dial, and a proposal of what to offer to whom, which its owner completes."""
    named = "[" + ", ".join(f'"{user}"' for user in users) + "]"
    policy = {setting: (named, meaning) for setting, meaning in _POLICY.items()} | WRITTEN
    taken = {setting: (json.dumps(list(names)), _MEMBERS[setting]) for setting, names in members.items() if names}
    policy |= taken
    width = max(len(f"{setting} = {value}") for setting, (value, _) in policy.items())
    rules = [f"{f'{setting} = {value}':<{width}}  # {meaning}" for setting, (value, meaning) in policy.items()]
    return f"""\
# {party} in the federation {federation}. This file is yours: complete the table, read the policy, and change both.
# All settings: docs/configuration.md. Check it with: woodlot check party.toml
coordinator = "{address}"

[tables.customers]                  # a table, by the name that jobs use; there may be more
path = "customers.parquet"          # CSV, Parquet or Arrow, relative to this file; or a query, see the settings
id = "customer_id"                  # the column that identifies a row
columns = ["COLUMN_1", "COLUMN_2"]  # the columns that jobs may use; others are not even read
labels = []                         # those of them that may be predicted

[policy]                            # checked here: no user, coordinator or operator can overrule it
{chr(10).join(rules)}

# [monitor]
# listen = "127.0.0.1:9465"         # health and metrics
"""


def member_settings(federation: str, role: str, address: Address, users: Sequence[str]) -> str:
    """``helper.toml`` or ``keys.toml``."""
    named = json.dumps(list(users))
    return f"""\
# The {role} of the federation {federation}. It has no tables.
# All settings: docs/configuration.md#helper-and-key-service
# Run it on a host of its own: with what the coordinator has, it could read splits and requests.
coordinator = "{address}"

[policy]
train = {named}     # users who may have keys made, or trainings dealt for
predict = {named}   # users who may predict

# [monitor]
# listen = "127.0.0.1:9466"         # health and metrics
"""


def job_settings(address: Address, parties: Sequence[str]) -> str:
    """``job.toml`` of a user."""
    tables = ", ".join(f'{party} = "customers"' for party in parties)
    return f"""\
# A training. Complete it, then run: woodlot train job.toml
# `woodlot parties --job job.toml` shows who is connected, `woodlot catalog --job job.toml` what they offer.
coordinator = "{address}"

[job]
tables = {{ {tables} }}
y = "{parties[0]}.LABEL"
task = "classification"

[forest]
n_estimators = 100
min_samples_leaf = {WRITTEN["min_samples_leaf"][0]}
"""


def start_script(federation: str, organisation: str, commands: Sequence[str]) -> str:
    """``start.sh``: runs the organisation's services, by their commands, until it is told to end."""
    program = Path(sys.executable).with_name("woodlot")
    woodlot = shlex.quote(str(program)) if program.exists() else "woodlot"
    starts = "\n".join(f'"$WOODLOT" {command} &\npids="$pids $!"' for command in commands)
    return f"""\
#!/bin/sh
# Runs what {organisation} has in the federation {federation}, until Ctrl-C. It is yours: change it as you like.
# To have it started with the machine use systemd: examples/systemd.
cd "$(dirname "$0")" || exit 1
WOODLOT=${{WOODLOT:-{woodlot}}}
pids=""
trap 'kill $pids 2>/dev/null' INT TERM
{starts}
status=0
for pid in $pids; do
    wait "$pid" || status=$?
done
wait
exit $status
"""


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
