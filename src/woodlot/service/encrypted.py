"""A user's side of encrypted forests: it has keys made for a model, encrypts rows, and gets answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woodlot.crypto.dtpkc import DEFAULT_BITS, Setting
from woodlot.data.tables import read_table
from woodlot.exceptions import DataError, IdentityError, PolicyError
from woodlot.jobs.orders import KeysOrder, Part, PredictEncryptedOrder
from woodlot.protocols.revocable.epoch_keys import GROUP_PURPOSE, proof_bytes, read_group
from woodlot.protocols.revocable.key_messages import AskKeys, KeysOfModel
from woodlot.protocols.revocable.participant import check_values
from woodlot.protocols.revocable.revocable_predict import encrypt_request
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
) -> KeysOfModel:
    """Begin an epoch of keys for a model, and have its splits encrypted; the epoch before it is over.

    Parameters
    ----------
    client : Client
        The user at the coordinator.
    model : str
        Its id or name.
    helper, key_service : str
        Members of the federation that run as such.
    bits, setting
        Of the modulus; see `woodlot.crypto.dtpkc`.

    Returns
    -------
    KeysOfModel

    """
    facts = client.find_model(model)
    members = (*facts.parties, helper, key_service)
    former = _told(client, facts.model)
    keyring = "" if former is None else former.keys
    order = KeysOrder(
        **client.order_fields({name: Part() for name in members}),
        model=facts.model,
        helper=helper,
        key_service=key_service,
        bits=bits,
        setting=setting,
        keys=keyring,
    )
    client.finish(client.submit(order).job)
    return checked_keys(client, facts.model, setting=setting, helper=helper, key_service=key_service)


def predict_encrypted(
    client: Client,
    model: str,
    columns: Mapping[str, ArrayLike],
    *,
    vote: Vote = "soft",
    setting: Setting = "standard",
    helper: str | None = None,
    key_service: str | None = None,
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
    setting, helper, key_service
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
    order = encrypted_order(client, model, columns, vote, setting=setting, helper=helper, key_service=key_service)
    job = client.submit(order).job
    client.finish(job)
    return client.predictions(job).outputs


def _told(client: Client, model: str) -> KeysOfModel | None:
    """What the coordinator says of a model's keys; None where there are none."""
    try:
        return client.ask(AskKeys(model=model), KeysOfModel)
    except DataError:
        return None


def keys_name(client: Client, model: str) -> str:
    """The name under which the members of a model keep its keys.

    It is the coordinator's word. Parties refuse a wrong one, for they have no such keys, or those of other splits.
    """
    return client.ask(AskKeys(model=model), KeysOfModel).keys


def checked_keys(
    client: Client,
    model: str,
    *,
    setting: Setting = "standard",
    helper: str | None = None,
    key_service: str | None = None,
) -> KeysOfModel:
    """The keys of a model, if its key service has made them: the coordinator passes the modulus on, and could read what
    is encrypted under one of its own.

    Parameters
    ----------
    client : Client
        The user at the coordinator.
    model : str
        Its id.
    setting : {"standard", "paper", "test"}
        The shortest modulus that is taken: others than "standard" are too short for use, and asked for by name.
    helper, key_service : str, optional
        Who they are, as this user knows it. Without, who they are is the coordinator's word, and it could name a member
        that works for it.

    Raises
    ------
    PolicyError
        If the keys are of a weaker setting, of other members than was said, or were made before there were proofs.
    IdentityError
        If the key service has not signed this modulus.

    """
    told = client.ask(AskKeys(model=model), KeysOfModel)
    _check_members(told, helper, key_service)
    if told.setting not in ("standard", setting):
        raise PolicyError(
            f"the keys of this model are of the {told.setting} setting, too short for use; rows are encrypted under "
            f"them only if asked for by name: setting={told.setting!r}, on the command line --setting {told.setting}"
        )
    _check_proof(client, told)
    return told


def _check_members(told: KeysOfModel, helper: str | None, key_service: str | None) -> None:
    for role, name, found in (("helper", helper, told.helper), ("key service", key_service, told.key_service)):
        if name is not None and name != found:
            raise PolicyError(f"the keys of this model are said to be those of the {role} {found!r}, not {name!r}")


def _check_proof(client: Client, told: KeysOfModel) -> None:
    proof = told.proof
    if proof is None:
        raise PolicyError(
            "the keys of this model were made before key services signed them, so that the coordinator could pass on a "
            "modulus of its own; have new ones made (a revocation at level 2, woodlot.service.encrypted.make_keys), or "
            "train the model anew"
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
    if told.proof is not None:
        _check_proof(client, told)
    elif told.setting != "standard":
        raise PolicyError(
            f"the keys of this model are said to be of the {told.setting} setting, and nobody has signed them; train "
            "it anew"
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
) -> PredictEncryptedOrder:
    """An order to predict rows, encrypted; parameters as for `predict_encrypted`."""
    facts = client.find_model(model)
    told = checked_keys(client, facts.model, setting=setting, helper=helper, key_service=key_service)
    group = read_group(told.group, told.setting)
    named: list[tuple[str, str]] = []
    for name in columns:
        party, dot, column = name.partition(".")
        if not (dot and column and party in told.parties):
            raise DataError(f"column {name!r} must be written 'party.column', of {', '.join(told.parties)}")
        named.append((party, column))
    parts = {
        name: Part(columns=tuple(column if party == name else "" for party, column in named)) for name in told.parties
    }
    # the helper compares a party's splits with that party's columns only
    parts |= {told.helper: Part(columns=tuple(party for party, _ in named)), told.key_service: Part()}
    fields: dict[str, Any] = client.order_fields(parts)
    values = [np.asarray(column, np.float64) for column in columns.values()]
    if not values or any(column.ndim != 1 or len(column) != len(values[0]) for column in values):
        raise DataError("a request has one value of every column in each row")
    rows = np.column_stack(values)
    # forests compare float32: so must the request
    request = encrypt_request(
        rows.astype(np.float32), group, requester=client.identity.name, splits=told.splits,
        request=bytes.fromhex(fields["job"]),
    )  # fmt: skip
    return PredictEncryptedOrder(
        **fields,
        model=facts.model,
        helper=told.helper,
        key_service=told.key_service,
        epoch=group.epoch,
        rows=rows.shape[0],
        columns=rows.shape[1],
        splits=told.splits,
        values=request.values.tobytes(),
        proof=request.proof,
        vote=vote,
        keys=told.keys,
    )
