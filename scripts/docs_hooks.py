"""For the documentation site: its front page is the README, and links to files beside the documents become names."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
_DIAGRAM = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)
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
    if entry.endswith("/"):
        pages = sorted((ROOT / "docs" / entry).glob("*.md"), key=lambda page: (page.stem != "README", page.stem))
        return [f"{entry}{page.name}" for page in pages]
    return entry


def on_files(files: Any, config: Any) -> Any:
    """Add the front page."""
    text = _LINK.sub(_from_root, (ROOT / "README.md").read_text(encoding="utf-8"))
    text = text.replace('src="docs/', 'src="')
    files.append(File.generated(config, "index.md", content=text))
    return files


def _from_root(link: re.Match[str]) -> str:
    text, target = link.groups()
    if target.startswith(("http", "#")):
        return link[0]
    return f"[{text}]({target.removeprefix('docs/')})" if target.startswith("docs/") else f"{text}"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links that lead out of the documents are shown as the name of the file; links to folders lead to their index."""
    here = posixpath.dirname(page.file.src_uri)
    for diagram in _DIAGRAM.findall(markdown):
        if ";" in diagram:  # ends a line for Mermaid, which then draws nothing at all
            get_plugin_logger(__name__).warning("%s: a diagram has a semicolon: use a comma", page.file.src_uri)

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
