"""Catalogues: what there is to learn from, as far as each owner tells it."""
