"""A user's side of encrypted forests: it has keys made for a model, encrypts rows, and gets answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woodlot.crypto.dtpkc import DEFAULT_BITS, Setting
from woodlot.data.tables import read_table
from woodlot.exceptions import DataError
from woodlot.protocols.messages.revocable_keys import AskKeys, KeysOfModel
from woodlot.protocols.revocable.epoch_keys import read_group
from woodlot.protocols.revocable.participant import check_values
from woodlot.protocols.revocable.predict import encrypt_request
from woodlot.service.client import Client
from woodlot.service.orders import KeysOrder, Part, PredictEncryptedOrder
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
    keyring = key_fields(client, facts.model).get("keys", "")
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
    return client.ask(AskKeys(model=facts.model), KeysOfModel)


def predict_encrypted(
    client: Client,
    model: str,
    columns: Mapping[str, ArrayLike],
    *,
    vote: Vote = "soft",
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

    Returns
    -------
    float64 array of shape (n_rows, n_outputs)

    Raises
    ------
    DataError
        If a column is not written as such, or values are missing or infinite.

    """
    order = encrypted_order(client, model, columns, vote)
    job = client.submit(order).job
    client.finish(job)
    return client.predictions(job).outputs


def key_fields(client: Client, model: str) -> dict[str, Any]:
    """The fields of an order that say what keys a model has; nothing where it has none."""
    try:
        told = client.ask(AskKeys(model=model), KeysOfModel)
    except DataError:
        return {}
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
    client: Client, model: str, columns: Mapping[str, ArrayLike], vote: Vote = "soft"
) -> PredictEncryptedOrder:
    """An order to predict rows, encrypted; parameters as for `predict_encrypted`."""
    facts = client.find_model(model)
    told = client.ask(AskKeys(model=facts.model), KeysOfModel)
    group = read_group(told.group, told.setting)
    named: list[tuple[str, str]] = []
    for name in columns:
        party, dot, column = name.partition(".")
        if not (dot and column and party in told.parties):
            raise DataError(f"column {name!r} must be written 'party.column', of {', '.join(told.parties)}")
        named.append((party, column))
    parts = {
        name: Part(columns=tuple(column if party == name else "" for party, column in named))
        for name in (*told.parties, told.helper, told.key_service)
    }
    fields: dict[str, Any] = client.order_fields(parts)
    values = [np.asarray(column, np.float64) for column in columns.values()]
    if not values or any(column.ndim != 1 or len(column) != len(values[0]) for column in values):
        raise DataError("a request has one value of every column in each row")
    rows = np.column_stack(values)
    # forests compare float32: so must the request
    request = encrypt_request(
        rows.astype(np.float32), group, requester=client.identity.name, request=bytes.fromhex(fields["job"])
    )
    return PredictEncryptedOrder(
        **fields,
        model=facts.model,
        helper=told.helper,
        key_service=told.key_service,
        epoch=group.epoch,
        rows=rows.shape[0],
        columns=rows.shape[1],
        values=request.values.tobytes(),
        vote=vote,
        keys=told.keys,
    )
