"""``federation.toml``: who takes part in a federation, for its operator; ``woodlot provision`` reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec

from woodlot.exceptions import ConfigError, IdentityError
from woodlot.identity.authority import LIST_DAYS
from woodlot.identity.certificates import COORDINATOR, Subject, check_name
from woodlot.service.settings import DEFAULT_PORT, Address, Section, anchored, convert, read_toml

EXAMPLE = f"""\
# A federation: who takes part, and where the coordinator is. Change it, then run:
#   woodlot provision federation.toml
# Add an organisation later, and run it again.

name = "loans"

# Where parties and users reach the coordinator. Only this port must be open, and only for them.
coordinator = "coordinator.example:{DEFAULT_PORT}"

# How long the list of revoked certificates is good, in days. Renew it in time, best by a timer:
#   woodlot identity revocations authority --renew
list_days = {LIST_DAYS}

# One section for each organisation. Its party, if it has one, has the organisation's name.
[organisations.bank]
here = true            # this organisation runs on this machine: its keys are made here
coordinator = true     # it runs the coordinator
users = ["alice"]      # its people who order jobs, each with a key of their own

[organisations.shop]   # elsewhere: it makes its keys itself (woodlot join --as shop) and sends you a request
# party = false        # an organisation without data, such as one that runs the coordinator only
# users = ["carol"]

# For revocable forests, and for hidden trainings without trust in the coordinator: organisations without data.
# [organisations.notary]
# helper = true        # or key_service = true; not both, and not with the coordinator
"""
"""What ``woodlot new`` writes."""


Service = Literal["party", "helper", "key service", ""]
"""What an organisation runs under its own name."""


class OrganisationConfig(Section, frozen=True, kw_only=True):
    """A section ``[organisations.NAME]``.

    Attributes
    ----------
    here : bool
        Whether it runs where the federation is provisioned: then its keys are made at once.
    coordinator : bool
        Whether it runs the coordinator.
    party : bool
        Whether it has data, and so runs a party, which has the organisation's name.
    helper, key_service : bool
        Whether it runs the helper, or the key service, under its name and in place of a party.
    users : tuple of str
        Its people who order jobs.

    """

    here: bool = False
    coordinator: bool = False
    party: bool = True
    helper: bool = False
    key_service: bool = False
    users: tuple[str, ...] = ()

    @property
    def service(self) -> Service:
        """What runs with a certificate of a party under the organisation's name; empty: nothing."""
        if self.helper or self.key_service:
            return "helper" if self.helper else "key service"
        return "party" if self.party else ""

    def check_apart(self, what: str) -> None:
        """Refuse two of coordinator, helper and key service in one hand: together they read what is compared."""
        runs = {"the coordinator": self.coordinator, "the helper": self.helper, "the key service": self.key_service}
        named = [service for service, is_here in runs.items() if is_here]
        if len(named) > 1:
            raise ConfigError(
                f"{what} runs {' and '.join(named)}; together they can read splits and requests, so name another "
                "organisation for one of them"
            )

    def members(self, name: str) -> tuple[Subject, ...]:
        """Role and name of each member that the organisation of this name has."""
        return (
            *([Subject(COORDINATOR, COORDINATOR)] if self.coordinator else []),
            *([Subject("party", name)] if self.service else []),
            *(Subject("user", user) for user in self.users),
        )


class FederationConfig(Section, frozen=True, kw_only=True):
    """``federation.toml``.

    Attributes
    ----------
    name : str
        Of the federation.
    coordinator : Address
        Where the coordinator is reached.
    organisations : dict of str to OrganisationConfig
        Who takes part.
    authority : Path
        Folder of the authority; made if it is missing.
    list_days : int
        How long lists of revocations are good.

    """

    name: str
    coordinator: Address
    organisations: dict[str, OrganisationConfig]
    authority: Path = Path("authority")
    list_days: Annotated[int, msgspec.Meta(ge=1)] = LIST_DAYS

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file.

        Raises
        ------
        ConfigError
            The message names the file, the setting and what it may be.

        """
        return cls.parse(read_toml(path), folder=path.absolute().parent, origin=str(path))

    @classmethod
    def parse(cls, raw: Mapping[str, Any], *, folder: Path, origin: str) -> Self:
        """Check settings that have been read; parameters as for the other files."""
        sections = raw.get("organisations", {})
        if not isinstance(sections, Mapping) or not all(isinstance(one, Mapping) for one in sections.values()):
            raise ConfigError(f"{origin}: organisations must be sections such as [organisations.bank]")
        read = {
            name: convert(OrganisationConfig, fields, origin, prefix=f"organisations.{name}.", whole=cls)
            for name, fields in sections.items()
        }
        config = convert(cls, {**raw, "organisations": {}}, origin)
        config = anchored(msgspec.structs.replace(config, organisations=read), folder)
        config._check(origin)
        return config

    def _check(self, origin: str) -> None:
        try:
            check_name(self.name)
            for name in self.organisations:
                check_name(name)
            members = [member for name, one in self.organisations.items() for member in one.members(name)]
        except IdentityError as error:
            raise ConfigError(f"{origin}: {error}") from None
        n_coordinators = sum(one.coordinator for one in self.organisations.values())
        if n_coordinators != 1:
            raise ConfigError(
                f"{origin}: {n_coordinators} organisations run the coordinator; exactly one must have "
                "coordinator = true"
            )
        if not self.parties:
            raise ConfigError(f"{origin}: no organisation has data; add a section such as [organisations.bank]")
        for name, one in self.organisations.items():
            if not one.members(name):
                raise ConfigError(f"{origin}: organisations.{name} has no party, no coordinator and no users")
            one.check_apart(f"{origin}: organisations.{name}")
        counts = Counter(member.name.lower() for member in members)
        if twice := [name for name, n in counts.items() if n > 1]:
            raise ConfigError(f"{origin}: {twice[0]!r} is the name of two members; names differ in more than case")

    @property
    def parties(self) -> tuple[str, ...]:
        """Organisations that have data."""
        return self.running("party")

    def running(self, service: Service) -> tuple[str, ...]:
        """Organisations that run a service under their name."""
        return tuple(name for name, one in self.organisations.items() if one.service == service)

    @property
    def users(self) -> tuple[str, ...]:
        """The users of all organisations."""
        return tuple(user for one in self.organisations.values() for user in one.users)
