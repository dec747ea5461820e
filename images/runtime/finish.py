"""Complete a new runtime volume: put the guest's modules in their place, compile them, and check every file.

Runs once in the volume, started by the interpreter that will run the guest. Exit status 0 and the word `complete` say
that the volume may be used; anything else says that it may not.
"""

import hashlib
import importlib.util
import json
import os
import py_compile
import sys

ROOT = "/.gamebox"
ARRIVED = ROOT + "/arrived"
MODULES = ROOT + "/modules"
# What a guest cannot do without, and what reads web pages for it.
NEEDED = ("json", "struct", "socket", "select", "ctypes", "ssl", "zlib", "subprocess", "threading", "pty")
WEB_PAGES = ("html.parser", "bs4", "markdownify")


def check(folder, digests):
    for name, wanted in digests.items():
        with open(f"{folder}/{name}", "rb") as file:
            if hashlib.sha256(file.read()).hexdigest() != wanted:
                sys.exit(f"{folder}/{name} is not what was sent")


def compile_guest(names):
    for name in names:
        if name.endswith(".py"):
            path = f"{MODULES}/{name}"
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            # Without docstrings, under the name that an interpreter without -OO looks for: its tracebacks still show the lines.
            target = importlib.util.cache_from_source(path, optimization="")
            py_compile.compile(path, target, doraise=True, optimize=2, invalidation_mode=mode)


with open(ROOT + "/manifest.json") as file:
    check(ROOT, json.load(file))
with open(ARRIVED + "/manifest.json") as file:
    arrived = json.load(file)
check(ARRIVED, arrived)
os.rename(ARRIVED + "/gamebox_guest", MODULES + "/gamebox_guest")
os.unlink(ARRIVED + "/manifest.json")
os.rmdir(ARRIVED)
compile_guest(arrived)
for module in NEEDED + WEB_PAGES:
    importlib.import_module(module)
os.sync()
print("complete")
