"""Looks at all that a dashboard shows in a role."""

from __future__ import annotations

import re
from collections.abc import Iterable

import httpx


def crawled(browser: httpx.Client, role: str, also: Iterable[str] = ()) -> dict[str, httpx.Response]:
    """All that can be got in a role: what links lead to, what pictures show, pages of errors, and further paths."""
    todo = ["/", "/nowhere", "/models/unknown", *also]
    got: dict[str, httpx.Response] = {}
    while todo:
        path = str(httpx.URL(todo.pop()).copy_remove_param("role"))  # which every link names
        if path in got or path == "/events":  # which never ends, and says only that something has changed
            continue
        asked = httpx.URL(path).copy_merge_params({"role": role, "levels": "9"})
        page = browser.get(asked, headers={"accept": "text/html"})
        assert page.status_code in (200, 204, 403, 404, 422), (path, page.text)
        got[path] = page
        if is_html(page):
            todo += [link.split("#")[0] for link in re.findall(r'(?:href|hx-get)="(/[^"]*)"', page.text)]
    return got


def is_html(page: httpx.Response) -> bool:
    """Whether a browser shows it as a page."""
    return page.headers.get("content-type", "").startswith("text/html")


def trees_of(model: str, n_trees: int) -> list[str]:
    """What is drawn of the trees of a model."""
    trees = [f"/models/{model}/trees/{tree}" for tree in range(n_trees)]
    return [*trees, *(f"{tree}/nodes" for tree in trees), *(f"{tree}/way?row=1&table=customers" for tree in trees)]
