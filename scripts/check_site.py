"""Whether the built site keeps its word: it loads nothing from elsewhere, its search finds words, its API is whole."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

SITE = Path(__file__).resolve().parent.parent / "build" / "site"
SOUGHT = {
    "gdpr": "how-to/forget/",
    "upgrade": "how-to/upgrade/",
    "prometheus": "how-to/monitor/",
    "kubernetes": "how-to/kubernetes/",
}
"""Words that people search for, and a page that must be among what is found."""
METHODS = {
    "FederatedForestClassifier": ("fit", "predict", "evaluate", "explain", "drift", "card", "save", "revoke", "forget"),
    "RevocableForestClassifier": ("fit", "predict", "evaluate", "save", "revoke"),
    "HorizontalForestRegressor": ("fit", "predict", "evaluate", "save", "revoke"),
    "FederatedLogisticRegression": ("fit", "predict", "evaluate", "save"),
    "Federation": ("local", "split", "catalog"),
}
_LOADED = re.compile(r'<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)="(https?:)?//[^"]*"')
_CANONICAL = 'rel="canonical"'


def problems() -> list[str]:
    """What is wrong with the site; nothing if all is well."""
    found = []
    for page in sorted(SITE.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        found += [
            f"{page.relative_to(SITE)} loads {tag[0]}" for tag in _LOADED.finditer(text) if _CANONICAL not in tag[0]
        ]
        if '<pre class="mermaid"' in text or 'class="language-mermaid' in text:
            found.append(f"{page.relative_to(SITE)} has a diagram that was not drawn")
    index = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    for word, wanted in SOUGHT.items():
        pages = [entry["location"] for entry in index if word in f"{entry['title']} {entry['text']}".lower()]
        if not any(page.startswith(wanted) for page in pages):
            found.append(f"a search for {word!r} does not find {wanted}; it finds {pages[:5]}")
    for name, methods in METHODS.items():
        text = (SITE / "reference" / "api" / name / "index.html").read_text(encoding="utf-8")
        found += [f"the page of {name} lacks {m}" for m in methods if not re.search(rf'id="woodlot[\w.]*\.{m}"', text)]
    return found


def main() -> None:
    """Print what is wrong, and exit with 1 if anything is."""
    found = problems()
    for problem in found:
        print(problem, file=sys.stderr)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
