"""Jobs that a party leads: its process runs the protocol, and the coordinator relays frames that it cannot read."""
