"""A hook of MkDocs (`mkdocs.yml`) that shows the pages of the repository as they are.

Pages link to each other and to source files by relative paths, as code hosts follow them. MkDocs
reads only what lies in `docs/`, so here README becomes the index, every other file that a page
links to is put under `repository/`, and the links are written for those places. What does not exist
is left to MkDocs, whose strict build stops there. Notebooks become pages, with the outputs that are
stored in them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\]\((?P<path>[^()#\s:]+)(?P<anchor>#[^()\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README, what pages link to outside of `docs/`, and the notebooks."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            _add_notebook(file, files, config)
    pages = [ROOT / "README.md"]
    files.append(_generated(pages[0], config))
    pages += [
        ROOT / "docs" / file.src_uri for file in files.documentation_pages() if file.abs_src_path
    ]
    while pages:
        page = pages.pop()
        for target in _linked(page, page.read_text(encoding="utf-8")):
            if files.get_file_from_path(_place(target)) is None:
                files.append(_generated(target, config))
                pages += [target] if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write the links of a page for the places of the site."""
    uri = page.file.src_uri
    source, folder = _source(uri), posixpath.dirname(uri)

    def rewrite(link: re.Match[str]) -> str:
        target = _target(source, link["path"])
        if target is None:
            return link[0]
        return f"]({posixpath.relpath(_place(target), folder or '.')}{link['anchor'] or ''})"

    return _LINK.sub(rewrite, markdown)


def _generated(path: Path, config: MkDocsConfig) -> File:
    if path.suffix == ".md":
        return File.generated(config, _place(path), content=path.read_text(encoding="utf-8"))
    return File.generated(config, _place(path), abs_src_path=str(path))


def _linked(page: Path, text: str) -> Iterator[Path]:
    for link in _LINK.finditer(text):
        target = _target(page, link["path"])
        if target is not None:
            yield target


def _target(page: Path, path: str) -> Path | None:
    """The file that a link means; a folder is its README, as code hosts show it."""
    target = (page.parent / path).resolve()
    target = target / "README.md" if target.is_dir() else target
    return target if target.is_file() and target.is_relative_to(ROOT) else None


def _place(path: Path) -> str:
    """Where a file of the repository stands on the site."""
    inside = path.relative_to(ROOT).as_posix()
    if inside == "README.md":
        return "index.md"
    if inside.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", inside.removeprefix("docs/"))
    return f"repository/{inside}"


def _source(uri: str) -> Path:
    """The file of the repository that stands at a place of the site."""
    if uri == "index.md":
        return ROOT / "README.md"
    if uri.startswith("repository/"):
        return ROOT / uri.removeprefix("repository/")
    return ROOT / "docs" / uri


def _add_notebook(file: File, files: Files, config: MkDocsConfig) -> None:
    body, resources = _exported(ROOT / "docs" / file.src_uri)
    files.remove(file)
    files.append(File.generated(config, re.sub(r"\.ipynb$", ".md", file.src_uri), content=body))
    folder = posixpath.dirname(file.src_uri)
    for name, content in resources.items():
        files.append(File.generated(config, posixpath.join(folder, name), content=content))


def _exported(path: Path) -> tuple[str, dict[str, bytes]]:
    resources: dict[str, Any] = {"unique_key": path.stem}
    body, resources = MarkdownExporter().from_filename(str(path), resources)
    return body, resources["outputs"]
