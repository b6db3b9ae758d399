"""Notebooks, executed and as pages."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient


class Recording(NotebookClient):
    """A client that keeps what was displayed, and what it was renewed to, in order."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.renewed: list[tuple[str, str]] = []

    def process_message(self, message, cell, cell_index):
        if message["msg_type"] in ("display_data", "update_display_data"):
            content = message["content"]
            self.renewed.append((content["transient"].get("display_id", ""), content["data"].get("text/html", "")))
        return super().process_message(message, cell, cell_index)


def executed(cells: list[str], folder: Path, timeout: int = 240) -> Recording:
    """The client of a notebook of these cells after it has run."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    client = Recording(notebook, timeout=timeout, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute()
    return client


def html_of(cell) -> list[str]:
    """The HTML outputs of a cell."""
    return ["".join(o["data"]["text/html"]) for o in cell.outputs if "text/html" in o.get("data", {})]


def page(notebook, theme: str = "light") -> str:
    """The notebook as the HTML page that nbconvert makes, without what it would load from a network."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(theme=theme, mathjax_url="", require_js_url="", jquery_url="")
    text, _ = exporter.from_notebook_node(notebook)
    return text
