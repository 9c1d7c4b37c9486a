"""A user's side of encrypted forests: it has keys made for a model, encrypts rows, and gets answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woodlot.crypto.dtpkc import DEFAULT_BITS, Setting
from woodlot.data.tables import read_table
from woodlot.exceptions import DataError, IdentityError, PolicyError, RemoteProtocolError
from woodlot.jobs.order_seal import new_job
from woodlot.jobs.orders import Part
from woodlot.jobs.revocable.revocable_orders import KeysOrder, PredictEncryptedOrder
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable.epoch_keys import GROUP_PURPOSE, proof_bytes, read_group
from woodlot.protocols.revocable.key_messages import AskKeys, KeysOfModel
from woodlot.protocols.revocable.participant import check_values
from woodlot.protocols.revocable.revocable_plan import DEFAULT_SCHEME, Scheme
from woodlot.protocols.revocable.revocable_predict import encrypt_request
from woodlot.protocols.revocable.share_messages import SharesOfModel
from woodlot.protocols.revocable.share_predict import share_request
from woodlot.service.client import Client
from woodlot.trees.predict import Vote


def make_keys(
    client: Client,
    model: str,
    *,
    helper: str,
    key_service: str,
    bits: int = DEFAULT_BITS,
    setting: Setting = "standard",
    scheme: Scheme = DEFAULT_SCHEME,
) -> KeysOfModel | SharesOfModel:
    """Begin an epoch of keys for a model, and have its splits shared or encrypted; the epoch before it is over.

    Parameters
    ----------
    client : Client
        The user at the coordinator.
    model : str
        Its id or name.
    helper, key_service : str
        Members of the federation that run as such.
    bits, setting
        Of the modulus of ``scheme="paper"``; see `woodlot.crypto.dtpkc`.
    scheme : {"auto", "shares", "paper"}
        How splits are hidden. A model keeps the scheme of its first keys.

    Returns
    -------
    KeysOfModel or SharesOfModel
        What the coordinator tells users of them.

    """
    made_by = {"helper": helper, "key_service": key_service}
    order = keys_order(client, model, **made_by, bits=bits, setting=setting, scheme=scheme)
    client.finish(client.submit(order).job)
    return checked_keys(client, order.model, **made_by, setting=setting, scheme=scheme)


def keys_order(
    client: Client,
    model: str,
    *,
    helper: str,
    key_service: str,
    bits: int = DEFAULT_BITS,
    setting: Setting = "standard",
    scheme: Scheme = DEFAULT_SCHEME,
) -> KeysOrder:
    """An order to begin an epoch of keys for a model; parameters as for `make_keys`."""
    facts = client.find_model(model)
    members = (*facts.parties, helper, key_service)
    former = _told(client, facts.model)
    return KeysOrder(
        **client.order_fields({name: Part() for name in members}),
        model=facts.model,
        helper=helper,
        key_service=key_service,
        keys="" if former is None else former.keys,
        **scheme_fields(scheme, bits, setting),
    )


def scheme_fields(scheme: Scheme, bits: int, setting: Setting) -> dict[str, Any]:
    """The fields of an order that say how splits are hidden."""
    return {"bits": bits, "setting": setting} if scheme == "paper" else {"scheme": "shares"}


def predict_encrypted(
    client: Client,
    model: str,
    columns: Mapping[str, ArrayLike],
    *,
    vote: Vote = "soft",
    setting: Setting = "standard",
    helper: str | None = None,
    key_service: str | None = None,
    scheme: Scheme = DEFAULT_SCHEME,
) -> NDArray[np.float64]:
    """The outputs of a model for rows that nobody but this user reads.

    Parameters
    ----------
    client : Client
        The user at the coordinator.
    model : str
        Its id or name; it must have keys (`make_keys`).
    columns : mapping of str to array
        Values by ``"party.column"``. Each party is told the names of its own columns only, the coordinator none.
    vote : {"soft", "hard"}
        Whether trees give shares or a vote.
    setting, helper, key_service, scheme
        As for `checked_keys`.

    Returns
    -------
    float64 array of shape (n_rows, n_outputs)

    Raises
    ------
    DataError
        If a column is not written as such, or values are missing or infinite.
    PolicyError, IdentityError
        As for `checked_keys`.

    """
    members = {"helper": helper, "key_service": key_service}
    order = encrypted_order(client, model, columns, vote, setting=setting, scheme=scheme, **members)
    job = client.submit(order).job
    client.finish(job)
    return client.predictions(job).outputs


def _ask(client: Client, model: str) -> KeysOfModel | SharesOfModel:
    """What the coordinator says of a model's keys."""
    told = client.ask(AskKeys(model=model), Message)
    if not isinstance(told, KeysOfModel | SharesOfModel):
        raise RemoteProtocolError(f"the coordinator answered with {type(told).__name__}")
    return told


def _told(client: Client, model: str) -> KeysOfModel | SharesOfModel | None:
    """What the coordinator says of a model's keys; None where there are none."""
    try:
        return _ask(client, model)
    except DataError:
        return None


def keys_name(client: Client, model: str) -> str:
    """The name under which the members of a model keep its keys.

    It is the coordinator's word. Parties refuse a wrong one, for they have no such keys, or those of other splits.
    """
    return _ask(client, model).keys


def checked_keys(
    client: Client,
    model: str,
    *,
    setting: Setting = "standard",
    helper: str | None = None,
    key_service: str | None = None,
    scheme: Scheme = DEFAULT_SCHEME,
) -> KeysOfModel | SharesOfModel:
    """The keys of a model, if its key service has made them: the coordinator passes the modulus on, and could read what
    is encrypted under one of its own. With shares there is no modulus: requests are sealed to helper and key service.

    Parameters
    ----------
    client : Client
        The user at the coordinator.
    model : str
        Its id.
    setting : {"standard", "paper", "test"}
        The shortest modulus that is taken: others than "standard" are too short for use, and asked for by name.
    helper, key_service : str, optional
        Who they are, as this user knows it. Without, who they are is the coordinator's word, and it could name members
        that work for it.
    scheme : {"auto", "shares", "paper"}
        What is taken; "auto": both.

    Raises
    ------
    PolicyError
        If the keys are of a weaker setting, of another scheme or other members than was said, or were made before there
        were proofs.
    IdentityError
        If the key service has not signed this modulus.

    """
    told = _ask(client, model)
    _check_members(told, helper, key_service)
    has = "shares" if isinstance(told, SharesOfModel) else "paper"
    if scheme not in (DEFAULT_SCHEME, has):
        raise PolicyError(f"the splits of this model are said to be hidden by scheme={has!r}, not {scheme!r}")
    if isinstance(told, SharesOfModel):
        return told
    if told.setting not in ("standard", setting):
        raise PolicyError(
            f"the keys of this model are of the {told.setting} setting, too short for use; rows are encrypted under "
            f"them only if asked for by name: setting={told.setting!r}, on the command line --setting {told.setting}"
        )
    _check_proof(client, told)
    return told


def _check_members(told: KeysOfModel | SharesOfModel, helper: str | None, key_service: str | None) -> None:
    for role, name, found in (("helper", helper, told.helper), ("key service", key_service, told.key_service)):
        if name is not None and name != found:
            raise PolicyError(f"the keys of this model are said to be those of the {role} {found!r}, not {name!r}")


def _check_proof(client: Client, told: KeysOfModel) -> None:
    proof = told.proof
    if proof is None:
        raise PolicyError(
            "the keys of this model were made before key services signed them, so that the coordinator could pass on a "
            "modulus of its own; have new ones made (a revocation at level 2, woodlot.service.encrypted.make_keys), or "
            "train the model again"
        )
    data = proof_bytes(proof.job, told.setting, proof.members, told.helper, told.key_service, told.group)
    try:
        client.check_signed(told.key_service, GROUP_PURPOSE, data, proof.signature)
    except IdentityError as error:
        raise IdentityError(
            f"the modulus of this model is not one that the key service {told.key_service!r} has signed: {error}. "
            "If that member has a new identity since, have new keys made; else somebody may have changed it"
        ) from None
    strangers = sorted(set(told.parties) - (set(proof.members) - {told.helper, told.key_service}))
    if strangers:
        raise PolicyError(
            f"the keys of this model are said to be those of {strangers[0]!r}, and the key service has made none for it"
        )


def key_fields(
    client: Client, model: str, *, helper: str | None = None, key_service: str | None = None
) -> dict[str, Any]:
    """The fields of an order that say what keys a model has, and new ones will have; nothing where it has none.

    Keys that were made before there were proofs are taken as they are told, for a new epoch to replace them.
    """
    told = _told(client, model)
    if told is None:
        return {}
    _check_members(told, helper, key_service)
    if isinstance(told, SharesOfModel):
        return {"helper": told.helper, "key_service": told.key_service, "keys": told.keys, "scheme": "shares"}
    if told.proof is not None:
        _check_proof(client, told)
    elif told.setting != "standard":
        raise PolicyError(
            f"the keys of this model are said to be of the {told.setting} setting, and nobody has signed them; train "
            "it again"
        )
    bits = read_group(told.group, told.setting).N.bit_length()
    return {
        "helper": told.helper, "key_service": told.key_service, "keys": told.keys, "bits": int(bits),
        "setting": told.setting,
    }  # fmt: skip


def request_columns(rows: Any) -> dict[str, NDArray[np.float64]]:
    """A requester's rows by column: numbers, none missing.

    Parameters
    ----------
    rows : data frame or Arrow table
        With columns called ``party.column``.

    """
    table = read_table(rows, what="the request")
    return {name: check_values("the request", name, table).astype(np.float64) for name in table.names}


def encrypted_order(
    client: Client,
    model: str,
    columns: Mapping[str, ArrayLike],
    vote: Vote = "soft",
    *,
    setting: Setting = "standard",
    helper: str | None = None,
    key_service: str | None = None,
    scheme: Scheme = DEFAULT_SCHEME,
) -> PredictEncryptedOrder:
    """An order to predict rows, encrypted or shared; parameters as for `predict_encrypted`."""
    facts = client.find_model(model)
    told = checked_keys(client, facts.model, setting=setting, helper=helper, key_service=key_service, scheme=scheme)
    named: list[tuple[str, str]] = []
    for name in columns:
        party, dot, column = name.partition(".")
        if not (dot and column and party in told.parties):
            raise DataError(f"column {name!r} must be written 'party.column', of {', '.join(told.parties)}")
        named.append((party, column))
    parts = {
        name: Part(columns=tuple(column if party == name else "" for party, column in named)) for name in told.parties
    }
    values = [np.asarray(column, np.float64) for column in columns.values()]
    if not values or any(column.ndim != 1 or len(column) != len(values[0]) for column in values):
        raise DataError("a request has one value of every column in each row")
    rows = np.column_stack(values).astype(np.float32)  # forests compare float32: so must the request
    # the helper compares a party's splits with that party's columns only
    owners = tuple(party for party, _ in named)
    if isinstance(told, SharesOfModel):
        fields = _shared_request(client, told, parts, rows, owners)
    else:
        fields = _encrypted_request(client, told, parts, rows, owners)
    return PredictEncryptedOrder(
        **fields,
        model=facts.model,
        helper=told.helper,
        key_service=told.key_service,
        rows=rows.shape[0],
        columns=rows.shape[1],
        splits=told.splits,
        vote=vote,
        keys=told.keys,
    )


def _encrypted_request(
    client: Client, told: KeysOfModel, parts: dict[str, Part], rows: NDArray[np.float32], owners: tuple[str, ...]
) -> dict[str, Any]:
    """The fields of an order that has a request under the paper's scheme."""
    group = read_group(told.group, told.setting)
    fields = client.order_fields({**parts, told.helper: Part(columns=owners), told.key_service: Part()})
    request = encrypt_request(
        rows, group, requester=client.identity.name, splits=told.splits, request=bytes.fromhex(fields["job"])
    )
    return {**fields, "epoch": group.epoch, "values": request.values.tobytes(), "proof": request.proof}


def _shared_request(
    client: Client, told: SharesOfModel, parts: dict[str, Part], rows: NDArray[np.float32], owners: tuple[str, ...]
) -> dict[str, Any]:
    """The fields of an order that has a request in shares: each holder is told its part alone."""
    job = new_job()
    request = share_request(
        rows,
        epoch=told.epoch,
        requester=client.identity.name,
        splits=told.splits,
        owners=owners,
        request=bytes.fromhex(job),
    )
    helper, service = request.helper, request.service
    parts = {
        **parts,
        told.helper: Part(columns=helper.owners, key=helper.key, other=helper.other),
        told.key_service: Part(key=service.key, other=service.other),
    }
    fields = client.order_fields(parts, job=job)
    return {**fields, "epoch": told.epoch, "values": request.values, "proof": b"", "scheme": "shares"}
