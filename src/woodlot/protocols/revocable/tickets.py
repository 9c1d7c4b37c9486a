"""Requests for encrypted predictions, as helper and providers see them: who asks, and whether it is answered."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from woodlot.exceptions import IdentityError, PolicyError
from woodlot.protocols.core.agreement import Signer
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.epoch_keys import TAG

REQUEST_PURPOSE = "prediction request"
"""What a requester's identity signs tickets for."""


def request_facts(ticket: msg.Ticket) -> tuple[object, ...]:
    """All that a request is: what is made for one is good for no other, should they ever have the same name."""
    return ticket.epoch, ticket.request, ticket.requester, ticket.rows, ticket.features, ticket.digest, ticket.splits


def proof_purpose(ticket: msg.Ticket) -> bytes:
    """What a requester's proof to know its values is for: this request, and no other."""
    return msgspec.msgpack.encode((TAG, "values", *request_facts(ticket)))


def ticket_bytes(ticket: msg.Ticket) -> bytes:
    """What a requester signs."""
    return msgspec.msgpack.encode((TAG, msgspec.structs.replace(ticket, signature=b"")))


@dataclass(eq=False)
class RequestGate:
    """Whose requests a party or helper answers, how many rows of each, and a log of them.

    Whoever knows the values of a request and sees its paths can search for a split: some 64 rows find one. So a party
    should know its requesters and limit them.

    Attributes
    ----------
    requesters : collection of str or None
        Whom it answers; None for everybody.
    rows_per_requester : int or None
        How many rows of one requester it answers in all.
    signer : Signer or None
        Verifies the requesters' signatures; None where there are no identities.
    log : list of Ticket
        The requests that it has answered.

    """

    requesters: Collection[str] | None = None
    rows_per_requester: int | None = None
    signer: Signer | None = None
    log: list[msg.Ticket] = field(default_factory=list)

    def check(self, ticket: msg.Ticket) -> None:
        """Refuse a request, or let it pass; nothing is changed.

        Raises
        ------
        PolicyError
            If the requester is not one of those, has used up its rows, or has not signed.

        """
        if self.requesters is not None and ticket.requester not in self.requesters:
            raise PolicyError(f"this party does not answer requests of {ticket.requester!r}")
        known = [old for old in self.log if old.requester == ticket.requester]
        asked = sum(old.rows for old in known)
        if self.rows_per_requester is not None and asked + ticket.rows > self.rows_per_requester:
            raise PolicyError(
                f"{ticket.requester!r} has asked about {asked} rows, and this party answers {self.rows_per_requester} "
                "of a requester"
            )
        if self.signer is not None:
            try:
                self.signer.verify(
                    ticket.requester, ticket.certificate, REQUEST_PURPOSE, ticket_bytes(ticket), ticket.signature
                )
            except IdentityError as error:
                raise PolicyError(f"the request is not signed by {ticket.requester!r}: {error}") from None

    def admit(self, ticket: msg.Ticket) -> None:
        """Note a request that has passed."""
        self.log.append(ticket)
