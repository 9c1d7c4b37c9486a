"""The papers' tables and figures, as experiments on one shared runner (`woodlot reproduce`).

`catalogue` has the list; each experiment is a module of its own that declares data sets, cells, what is measured and
what the page shows. `runner` runs cells, `page` and `figures` show them, `papers` says what each paper claims.
"""
