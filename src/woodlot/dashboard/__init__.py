"""The web page: what a coordinator or a party knows of its jobs and models, to be looked at.

``views`` reads state folders, ``trees`` draws a tree as one role knows it, ``actions`` does what its user may,
``guard`` keeps all others out, ``app`` has the pages, ``server`` serves them.
"""
