"""For the documentation site: its front page, a page for each public class, diagrams, and links out of the documents.

The front page is the README. Links to files beside the documents become names.
"""

from __future__ import annotations

import inspect
import posixpath
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from diagrams import DiagramError, with_drawings  # noqa: E402

API = "reference/api.md"
"""The page that lists what is public; each entry gets a page of its own."""
_ENTRY = re.compile(r"^::: (woodlot[\w.]*)((?:\n    .*)*)$", re.MULTILINE)
_WHOLE = "\n    options: {inherited_members: true}"
_LINK = re.compile(r"(?<!\!)\[([^\]]+)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """In the navigation a folder stands for all its pages, so that a new page needs no entry."""
    config["nav"] = [_expanded(entry) for entry in config["nav"]]
    return config


def _expanded(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _expanded(inner) for title, inner in entry.items()}
    if isinstance(entry, list):
        return [_expanded(inner) for inner in entry]
    if entry == API:
        return [API, *(_api_page(name) for name, _ in _entries())]
    if entry.endswith("/"):
        pages = sorted((ROOT / "docs" / entry).glob("*.md"), key=lambda page: (page.stem != "README", page.stem))
        return [f"{entry}{page.name}" for page in pages]
    return entry


def _entries() -> list[tuple[str, str]]:
    """What the API page lists: dotted names, and options for what is shown of each."""
    return _ENTRY.findall((ROOT / "docs" / API).read_text(encoding="utf-8"))


def _api_page(name: str) -> str:
    return f"reference/api/{name.rpartition('.')[2]}.md"


def _summary(name: str) -> str:
    """The first sentence of what an object says of itself."""
    home, _, last = name.rpartition(".")
    try:
        found = getattr(import_module(home), last)
    except AttributeError:
        found = import_module(name)
    return " ".join((inspect.getdoc(found) or "").partition("\n\n")[0].split())


def on_files(files: Any, config: Any) -> Any:
    """Add the front page, and a page for each entry of the API."""
    for name, options in _entries():
        text = f"# {name.rpartition('.')[2]}\n\n::: {name}{options or _WHOLE}\n"
        files.append(File.generated(config, _api_page(name), content=text))
    text = _LINK.sub(_from_root, (ROOT / "README.md").read_text(encoding="utf-8"))
    text = text.replace('src="docs/', 'src="')
    files.append(File.generated(config, "index.md", content=text))
    return files


def _listed(entry: re.Match[str]) -> str:
    name = entry[1].rpartition(".")[2]
    return f"- [`{name}`](api/{name}.md): {_summary(entry[1])}"


def _from_root(link: re.Match[str]) -> str:
    text, target = link.groups()
    if target.startswith(("http", "#")):
        return link[0]
    return f"[{text}]({target.removeprefix('docs/')})" if target.startswith("docs/") else f"{text}"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links that lead out of the documents are shown as the name of the file; links to folders lead to their index."""
    here = posixpath.dirname(page.file.src_uri)
    if page.file.src_uri == API:
        return _ENTRY.sub(_listed, markdown)
    try:
        markdown = with_drawings(markdown)
    except DiagramError as error:
        get_plugin_logger(__name__).warning("%s: %s", page.file.src_uri, error)

    def change(link: re.Match[str]) -> str:
        text, target = link.groups()
        if target.startswith(("http", "#", "mailto:")):
            return link[0]
        path, mark, anchor = target.partition("#")
        full = posixpath.normpath(posixpath.join(here, path))
        if full.startswith(".."):
            return f"{text} (`{full.lstrip('./')}`)" if full.lstrip("./") not in text else text
        if (ROOT / "docs" / full).is_dir():
            return f"[{text}]({posixpath.join(path, 'README.md')}{mark}{anchor})"
        return link[0]

    return _LINK.sub(change, markdown)
