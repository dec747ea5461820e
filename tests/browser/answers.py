"""``python -m tests.browser.answers``: write into docs/reference/pages.md what the three operations answer on a real page."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from sandbox import DockerEnvironment

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/pages.md"
PICTURE = ROOT / "docs/reference/pages.png"
BEGIN, END = "<!-- answers: begin, written by python -m tests.browser.answers -->\n", "<!-- answers: end -->\n"
SITE = """<!doctype html><title>Orders</title>
<style>
body {font: 16px sans-serif; margin: 0} main {width: 560px; padding: 16px}
table {margin-top: 16px} th, td {text-align: left; padding-right: 48px}
</style>
<main><h1>Orders</h1>
<form><label>Customer <input id=who required></label>
<label>Parcel <select id=size><option>small<option>large</select></label> <button>Add</button></form>
<table><tr><th>Customer<th>Parcel<tr><td>Ben<td>small</table><p role=status id=count>1 order</p></main>
<script>
fetch("/stock.json").then(answer => answer.json()).catch(() => console.error("the stock is unknown"))
document.forms[0].onsubmit = event => {
  event.preventDefault()
  const row = document.querySelector("table").insertRow()
  for (const field of [who, size]) row.insertCell().textContent = field.value
  count.textContent = "2 orders"
}
</script>
"""
STEPS = """[{"action": "fill", "target": "e1", "value": "Ann"},
 {"action": "select", "target": "e2", "value": "large"},
 {"action": "click", "target": "e5"}]
"""


def answers(env: DockerEnvironment) -> tuple[str, bytes]:
    """Return the part of the page, and the picture."""
    env.write("orders/index.html", SITE).unwrap()
    env.run("python3 -m http.server 8000 --bind 127.0.0.1 --directory orders", background=True).unwrap()
    env.wait_for(port=8000, timeout_seconds=60).unwrap()
    opened = env.browse("http://127.0.0.1:8000/", timeout_seconds=60).to_text()
    used = env.browse_interact(json.loads(STEPS)).to_text()
    taken = env.screenshot(target="main", path="orders.png")
    image = taken.unwrap().image
    assert image is not None
    parts = (
        "`browse(url=\"http://127.0.0.1:8000/\")`, of a page that an agent has just written:",
        _block("text", opened),
        "`browse_interact` with these steps:",
        _block("json", STEPS),
        _block("text", used),
        "`screenshot(target=\"main\", path=\"orders.png\")` answers with one line, and with the picture for models that see:",
        _block("text", taken.to_text()),
        f"![The page Orders with a form, and a table in which the order of Ann, large, follows that of Ben]({PICTURE.name})",
    )
    return "\n\n".join(parts), base64.b64decode(image["data"])


def _block(kind: str, text: str) -> str:
    return f"```{kind}\n{text.strip()}\n```"


def main() -> None:
    """Write the part of the page, and the picture."""
    with DockerEnvironment(image="gamebox/browser") as env:
        text, picture = answers(env)
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    PICTURE.write_bytes(picture)


if __name__ == "__main__":
    main()
