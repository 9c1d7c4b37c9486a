"""What several protocols share: messages and rounds, parts of forests, targets, bits, agreements on secrets."""
