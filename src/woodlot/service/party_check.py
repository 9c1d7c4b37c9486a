"""What is right and wrong with a party's configuration, found before a job depends on it.

`check_party` is for ``woodlot check``. A party does the same at its start: `Party` loads identity, secret and state
folder itself, which raises, and calls `check_start` for the rest. Findings name columns and files: they are for the
party's own eyes.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Literal

import msgspec

from woodlot.data.sources import TableSource
from woodlot.data.wording import quoted
from woodlot.exceptions import ConfigError, IdentityError, WoodlotError
from woodlot.identity import certificates as files
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs.policy import EVERYBODY, UNLIMITED, Policy
from woodlot.runtime.drivers.grpc_wire import SERVER_NAME
from woodlot.service.agent import load_identity
from woodlot.service.config import PartyConfig
from woodlot.trees.arrays.array_module import card

logger = logging.getLogger(__name__)

DIAL_SECONDS = 5.0
"""How long the coordinator may take to answer."""
RENEW_DAYS = 14
"""A certificate that expires sooner is warned about."""

State = Literal["right", "warning", "wrong"]


class CheckedItem(msgspec.Struct, frozen=True):
    """One thing that was checked.

    Attributes
    ----------
    what : str
        What it is, such as ``"table customers"``.
    state : {"right", "warning", "wrong"}
        With a wrong one a party does not start.
    told : str
        What was found, and what to do about it.

    """

    what: str
    state: State
    told: str


def check_party(config: PartyConfig) -> list[CheckedItem]:
    """Check all that a party needs of its own machine, and what its policy leaves open.

    Parameters
    ----------
    config : PartyConfig
        The party's settings.

    Returns
    -------
    list of CheckedItem
        In the order in which a party needs them.

    """
    return [
        _found("identity", lambda: _identity(config)),
        _found("revocations", lambda: _revocations(config)),
        _found("alignment secret", lambda: _secret(config)),
        _found("state folder", lambda: _state(config)),
        *_rest(config),
    ]


def check_start(config: PartyConfig) -> None:
    """Refuse to start with a table that no job could use; what the policy leaves open is logged.

    Raises
    ------
    ConfigError
        With all that is wrong.

    """
    found = list(_rest(config))
    for one in found:
        if one.state == "warning":
            logger.warning("%s: %s", one.what, one.told)
    wrong = [f"  {one.what}: {one.told}" for one in found if one.state == "wrong"]
    if wrong:
        raise ConfigError(
            "the party does not start, since it could not do what its configuration says:\n" + "\n".join(wrong)
        )


def _rest(config: PartyConfig) -> Iterator[CheckedItem]:
    for table in config.tables.values():
        yield _found(f"table {table.name}", lambda table=table: _table(table))  # type: ignore[misc]
    yield _found("policy", lambda: _policy(config.policy))
    if config.compute.device == "cuda":
        yield _found("compute.device", _card)


def _found(what: str, look: Callable[[], tuple[State, str]]) -> CheckedItem:
    try:
        return CheckedItem(what, *look())
    except WoodlotError as error:
        return CheckedItem(what, "wrong", str(error))


def _identity(config: PartyConfig) -> tuple[State, str]:
    identity = load_identity(config.identity, "party")
    days = (identity.expires - datetime.now(UTC)).days
    told = f"party {identity.name!r}, valid until {identity.expires:%Y-%m-%d}; key and certificate belong together"
    if days >= RENEW_DAYS:
        return "right", told
    request = config.identity / files.REQUEST
    return "warning", f"{told}; it expires in {days} days: have the operator sign {request} again"


def _revocations(config: PartyConfig) -> tuple[State, str]:
    """The list that the party has now; a newer one comes from the coordinator, or from where the party looks for it."""
    identity = load_identity(config.identity, "party")
    trust = Trust(identity.authority, config.identity / files.REVOKED, may_be_missing=True)
    trust.admit(identity.certificate, role="party")
    try:
        trust.check_fresh()
    except IdentityError as error:
        return "warning", f"the party would take no orders: {error}"
    return "right", "there is a list that is valid now, and it does not name this party"


def _secret(config: PartyConfig) -> tuple[State, str]:
    if config.alignment.read_secret() is None:
        return "right", "none configured: the parties agree on one for each alignment"
    return "right", f"{config.alignment.secret_file}, readable by its owner only; it must be the same at every party"


def _state(config: PartyConfig) -> tuple[State, str]:
    """The folder, or the first one above it that is there, can be written; nothing is made here."""
    folder = config.state
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return "wrong", f"{folder} cannot be written by this user; make it a folder where this user may write"
    return "right", f"{config.state}{'' if folder == config.state else ', which will be made'}"


def _table(source: TableSource) -> tuple[State, str]:
    facts = source.inspect()
    told = [f"{facts.n_rows:,} rows, ids are {facts.ids}", f"learnt from: {quoted(facts.features) or 'none'}"]
    told += [f"labels: {quoted(source.labels or ()) or 'none'}"]
    if source.weights:
        told += [f"weights, which all parties get in clear: {quoted(source.weights)}"]
    return ("right" if facts.features else "warning"), "; ".join(told)


def _card() -> tuple[State, str]:
    """The graphics card that the configuration asks for."""
    found = card()
    return "right", f"{found.name}, {found.memory / 2**30:.0f} GiB"


def _policy(policy: Policy) -> tuple[State, str]:
    """What a policy leaves open."""
    everybody = [name for name in ("train", "predict", "receive") if EVERYBODY in getattr(policy, name)]
    limits = ["predictions_per_day", "trainings_per_day"]
    limits += ["explanations_per_day"] if "explain" in policy.protocols else []
    unlimited = [name for name in limits if getattr(policy, name) == UNLIMITED]
    single = [name for name in ("min_rows", "min_samples_leaf") if getattr(policy, name) == 1]
    exact = [name for name in ("max_bins", "trees") if getattr(policy, name) == UNLIMITED]
    open_ = []
    if not policy.train and not policy.predict:
        open_ += ["nobody may train or predict; name users in train and predict"]
    if everybody:
        open_ += [f'{", ".join(everybody)} = ["*"] lets in everybody whom the federation has signed; name them']
    if unlimited:
        open_ += [f"{' and '.join(unlimited)} set no limit; a number bounds what a stolen identity can ask for"]
    if single:
        open_ += [f"{' and '.join(single)} = 1 let single rows be told apart; ask for more"]
    if exact and "train" in policy.protocols:
        open_ += [
            f"{' and '.join(exact)} set no limit: forests over columns can tell values as finely as they are; write "
            "max_bins = 32 and trees = 100, for example"
        ]
    if policy.labels_to_coordinator:
        open_ += ["labels_to_coordinator = true lets revocable forests send labels to the coordinator in clear"]
    if "explain" in policy.protocols and policy.explains != "none":
        open_ += [
            f'explains = "{policy.explains}" lets the label holder of a model learn which way explained rows go at all '
            "nodes of this party"
        ]
    if policy.protection == "hidden":
        taken = 'protection = "hidden" refuses trainings in which all parties learn which row goes where'
    else:
        taken = 'protection = "open" takes trainings in which all parties learn which row goes where'
    state: State = "warning" if open_ else "right"
    return state, "; ".join([*(open_ or ["every setting that protects is written"]), taken])


def check_coordinator(config: PartyConfig) -> CheckedItem:
    """See whether the coordinator can be reached and is of the same federation.

    It makes a TLS connection and no more. A party that runs with the same identity is not disturbed; whether the
    coordinator lets this party in, as it does not when its certificate was revoked, shows when the party starts.
    """
    return _found("coordinator", lambda: _coordinator(config, load_identity(config.identity, "party")))


def _coordinator(config: PartyConfig, identity: Identity) -> tuple[State, str]:
    where = str(config.coordinator)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=identity.authority.decode())
    context.load_cert_chain(config.identity / files.CERTIFICATE, config.identity / files.KEY)
    try:
        line = socket.create_connection((config.coordinator.host.strip("[]"), config.coordinator.port), DIAL_SECONDS)
    except OSError as error:
        problem = error.strerror or "no answer in time"
        return "warning", (
            f"{where} cannot be reached ({problem}); if it should be up, check the address, and that the firewall lets "
            "this machine connect"
        )
    try:
        with line, context.wrap_socket(line, server_hostname=SERVER_NAME) as secured:
            answer = secured.recv(1)  # its first words come once it has accepted this side's certificate
    except ssl.SSLCertVerificationError as error:
        raise IdentityError(
            f"what answers at {where} is not the coordinator of this party's federation ({error.verify_message}); "
            "check the address, and that both have certificates of the same authority"
        ) from None
    except (ssl.SSLError, ConnectionError) as error:
        raise IdentityError(
            f"{where} does not accept this party's certificate, or does not speak TLS 1.3 ({error.args[-1]}); ask the "
            "coordinator's operator whether the certificate was revoked"
        ) from None
    except TimeoutError:
        return "warning", f"{where} is connected, and does not answer within {DIAL_SECONDS:g} s; is it overloaded?"
    if not answer:
        raise IdentityError(
            f"{where} ends the connection; ask its operator whether this party's certificate was revoked"
        )
    return "right", f"{where} answers, with a certificate of the same federation"
