"""At the SuperLink: the coordinator of one order. Its rounds do not go over Flower."""

from __future__ import annotations

import logging
import time

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from woodlot.engines.flower import JOIN_SECONDS, coordinator_config, lead
from woodlot.engines.signed_order import SignedOrder

app = ServerApp()
logger = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Have the SuperNodes start their parties, run the order, and keep the model."""
    signed = SignedOrder.decode(str(context.run_config["order"]))
    config, order = coordinator_config(), signed.content
    folder = config.state / "results" / str(context.run_id)
    asked: list[str] = []

    def start_parties() -> None:
        until = time.monotonic() + JOIN_SECONDS
        while len(nodes := list(grid.get_node_ids())) < len(order.parties) and time.monotonic() < until:
            time.sleep(0.5)
        content = RecordDict({"woodlot": ConfigRecord({"job": order.job, "parties": list(order.parties)})})
        # One message for the whole forest: the process that takes it stays until the job has ended.
        asked.extend(grid.push_messages([Message(content, node, MessageType.TRAIN) for node in nodes]))

    facts = lead(config, signed, start_parties, folder)
    logger.info("Woodlot: job %s is done in %d rounds; the model is in %s", facts.job, facts.rounds, folder)
    until = time.monotonic() + JOIN_SECONDS
    while asked and time.monotonic() < until:
        ended = {message.metadata.reply_to_message_id for message in grid.pull_messages(asked)}
        asked = [message for message in asked if message not in ended]
        time.sleep(0.5)
