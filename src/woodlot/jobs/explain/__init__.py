"""Explanations: the label holder, which leads, divides answers among parties and columns, and seals them to the user."""
