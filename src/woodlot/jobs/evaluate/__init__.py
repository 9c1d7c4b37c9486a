"""Evaluations: the label holder compares answers with its labels, and the report is sealed to the user."""
