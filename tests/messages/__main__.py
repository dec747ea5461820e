"""Situations in which a model meets an error or a notice, and the text that it is shown there.

    python -m tests.messages                                      write the texts anew (they need Docker)
    python -m tests.messages draw --seed 7 --count 20 DIR         a random draw, a file for each reader: DIR/001.txt ...
                                  --keys FILE                     and the keys for the judge (default: DIR.keys.json)
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from .files import TEXTS, page_of, read_page
from .situations import ALL, BY_NAME
from .stage import staged

QUESTION = (
    "You are a coding agent at work in a sandbox. Below are your task, the tools you have, your last action and its result.\n"
    "What do you do next, and why? Answer with one action (or say that you would end the run) and one sentence.\n"
)


def write(names: Sequence[str]) -> int:
    """Let the situations happen and write what is shown; how many are not as they were."""
    changed = 0
    TEXTS.mkdir(exist_ok=True)
    with staged() as stage:
        for situation in ALL:
            if names and situation.name not in names:
                continue
            try:
                page = page_of(situation, stage.play(situation))
            except Exception as error:  # noqa: BLE001 - the others are still worth having
                print(f"{situation.name}: {type(error).__name__}: {error}", file=sys.stderr)
                changed += 1
                continue
            path = TEXTS / f"{situation.name}.txt"
            if not path.exists() or path.read_text(encoding="utf-8") != page:
                changed += 1
                print(f"changed: {situation.name}")
                path.write_text(page, encoding="utf-8")
    for path in TEXTS.glob("*.txt"):
        if path.stem not in BY_NAME:
            path.unlink()
    return changed


def draw(folder: Path, keys: Path, seed: int, count: int) -> None:
    """Write ``count`` situations as files without anything that tells the answer, and their keys to ``keys``."""
    folder.mkdir(parents=True, exist_ok=True)
    written = sorted(path.stem for path in TEXTS.glob("*.txt"))
    drawn = random.Random(seed).sample(written, min(count, len(written)))
    known = {}
    for number, name in enumerate(drawn, 1):
        situation, page = BY_NAME[name], read_page(name)
        file = f"{number:03}.txt"
        text = f"{QUESTION}\n# Task\n{situation.task}\n\n# Tools (? marks what may be left out)\n{page.tools}\n\n"
        (folder / file).write_text(f"{text}# Your last action\n{page.action}\n\n# Its result\n{page.text}", encoding="utf-8")
        known[file] = {"situation": name, "codes": situation.codes, "right": situation.key, "wrong": situation.wrong}
    keys.write_text(json.dumps({"seed": seed, "keys": known}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """See above."""
    parser = argparse.ArgumentParser("python -m tests.messages", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="names of situations to write anew")
    commands = parser.add_subparsers(dest="command")
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, default=20)
    drawing.add_argument("--keys", type=Path)
    drawing.add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    if given.command == "draw":
        keys = given.keys or given.folder.with_name(f"{given.folder.name}.keys.json")
        draw(given.folder, keys, given.seed, given.count)
        return 0
    return 1 if write(given.only) else 0


if __name__ == "__main__":
    sys.exit(main())
