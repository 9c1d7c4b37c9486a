"""A Flower app that starts and ends the parties of a Woodlot federation; docs/how-to/flower.md explains it."""
