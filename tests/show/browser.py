"""Pages in a headless browser: what it measures, and what it looks like."""

import html
import json
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

MISSING = "no chromium, chromium-browser or google-chrome on PATH, and none of Playwright's"

MEASURE = """
const opaque = c => !/rgba\\(.*, 0\\)|transparent/.test(c);
function back(e) {
  for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor;
    if (opaque(c)) return c;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "rgb(0, 0, 0)" : "rgb(255, 255, 255)";
}
function light(c) {
  const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
    .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function contrasts() {
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || !e.closest(".tir") || e.closest("style, title") || !e.getClientRects().length) continue;
    const s = getComputedStyle(e), a = light(e.closest("svg") ? s.fill : s.color), b = light(back(e));
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text.slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}
function wide() {
  const out = [];
  for (const e of document.querySelectorAll(".tir, .tir *")) {
    const inside = e.closest("pre, .tir-tree, .tir-table, .tir-rows, .tir-failures, .tir-wide-figure");
    if (!inside && e.getClientRects().length && e.getBoundingClientRect().right > innerWidth + 1)
      out.push(e.outerHTML.slice(0, 200));
  }
  return out;
}
const cards = [...document.querySelectorAll(".tir")];
const folds = [...document.querySelectorAll(".tir .tir-fold")];
const result = {
  cards: cards.length,
  heads: cards.map(c => c.querySelector(".tir-head b").textContent),
  tables: document.querySelectorAll(".tir table").length,
  svgs: document.querySelectorAll(".tir svg").length,
  folds: folds.length, open: folds.filter(d => d.open).length,
  tree: document.querySelectorAll(".tir .tir-tree details[open]").length,
  background: cards.map(c => getComputedStyle(c).backgroundColor),
  mono: [...document.querySelectorAll(".tir pre, .tir code, .tir .tir-tree")].filter(
    e => !/monospace/.test(getComputedStyle(e).fontFamily)).length,
};
for (const d of document.querySelectorAll(".tir details")) d.open = true;
result.contrasts = contrasts().slice(0, 5);
result.texts = contrasts().length;
result.wide = wide();
result.page = [document.documentElement.scrollWidth, innerWidth];
const pre = document.createElement("pre");
pre.id = "measured";
pre.textContent = JSON.stringify(result);
document.body.append(pre);
"""


@cache
def browser() -> str | None:
    """The program, from PATH or Playwright's package; None where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    try:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as p:
            path = p.chromium.executable_path
        return path if Path(path).exists() else None
    except Exception:  # not installed, or without its browser
        return None


def _run(page: Path, dark: bool, size: tuple[int, int], *options: str, fragment: str = "") -> str:
    program = browser()
    assert program is not None
    with tempfile.TemporaryDirectory() as home:
        scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        fixed = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000",
                 "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={home}")  # fmt: skip
        window = f"--window-size={size[0]},{size[1]}"
        command = [program, *fixed, scheme, window, *options, page.as_uri() + fragment]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def measured(text: str, dark: bool = False, size: tuple[int, int] = (1000, 900)) -> dict:
    """What the browser finds on a page of this HTML, whose cards it measures."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(f"{text}<script>{MEASURE}</script>", encoding="utf-8")
        dom = _run(page, dark, size, "--dump-dom")
    found = re.search(r'<pre id="measured">(.*?)</pre>', dom, re.S)
    assert found, dom[-2000:]
    return json.loads(html.unescape(found[1]))


def dom(text: str, fragment: str = "", size: tuple[int, int] = (1280, 800)) -> str:
    """The page as its own scripts leave it. fragment: ``#…`` of its address"""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(text, encoding="utf-8")
        return _run(page, False, size, "--dump-dom", fragment=fragment)


def picture(text: str, path: Path, dark: bool = False, size: tuple[int, int] = (900, 600)) -> None:
    """A PNG of a page of this HTML."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(text, encoding="utf-8")
        _run(page, dark, size, f"--screenshot={path.absolute()}")
