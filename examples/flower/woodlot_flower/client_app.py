"""At a SuperNode: the party, for as long as one order takes."""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from woodlot.engines.flower import PARTY_FILE, take_part
from woodlot.service.config import PartyConfig

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Start the party that the SuperNode's owner has configured; it checks the order against its own policy."""
    asked = message.content["woodlot"]
    took_part = take_part(
        PartyConfig.load(str(context.node_config[PARTY_FILE])), str(asked["job"]), [str(p) for p in asked["parties"]]
    )
    return Message(RecordDict({"woodlot": ConfigRecord({"took_part": took_part})}), reply_to=message)
