"""Identities for a federation of one owner, who is the operator of its authority too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from woodlot.identity.authority import Authority
from woodlot.identity.identity import Identity, install, request

DAYS = 1
"""How long the certificates are valid: a new federation is made for every use."""


def make_identities(operator: Authority, root: Path, members: Mapping[str, str]) -> dict[str, Identity]:
    """Make keys for all members in folders ``root/NAME/identity``, and have the operator sign them.

    Parameters
    ----------
    operator : Authority
        The authority of the federation.
    root : Path
        Where the members' folders are.
    members : mapping of str to str
        Each member's role, by its name.

    """
    identities = {}
    for name, role in members.items():
        folder, answer = root / name / "identity", root / name / "from-operator.pem"
        asked = request(folder, role, name)
        answer.write_bytes(operator.sign(asked, days=DAYS))
        identities[name] = install(folder, answer)
    return identities
