"""Gather the Python that runs this file into a folder that needs nothing outside itself; runs in the image's build."""

import compileall
import hashlib
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
TARGET = Path(sys.argv[1])
LIB = TARGET / "lib"
STDLIB = LIB / f"python{sys.version_info.major}.{sys.version_info.minor}"

# What a guest never imports: tests, other programs' parts, windows and terminals on a desktop, databases.
UNWANTED = re.compile(
    r"(^|/)(__pycache__|test|tests|idlelib|tkinter|turtledemo|turtle\.py|lib2to3|ensurepip|distutils|pydoc_data|pydoc\.py"
    r"|venv|dist-packages|unittest|doctest\.py|sqlite3|curses|dbm|wsgiref|xmlrpc|antigravity\.py|this\.py|sitecustomize\.py"
    r"|config-[^/]*)(/|$)"
    r"|lib-dynload/(_curses\w*|readline|_dbm|_gdbm|nis|_tkinter|_sqlite3|_test\w*|_ctypes_test|_xx\w*|xx\w*|ossaudiodev|_uuid"
    r"|audioop|_crypt)\."
)
# The loader and the C library look for these in whatever image they run in, and would take its libraries and locales
# into the guest. What stands there instead has the same length and does not exist, but for the name services: those
# that are in the C library itself.
TRIPLET = sysconfig.get_config_var("MULTIARCH")
FOREIGN = (f"/usr/lib/{TRIPLET}", f"/lib/{TRIPLET}", "/usr/lib/locale", "/etc/ld.so.preload")
OWN_FILES = {path.encode(): b"/.gamebox/".ljust(len(path), b"-") for path in FOREIGN}
OWN_FILES[b"/etc/nsswitch.conf\0"] = b"/.gamebox/nss.conf\0"
NAME_SERVICES = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"


def libraries(program: Path) -> tuple[Path | None, set[Path]]:
    """The loader and the shared libraries an ELF file needs."""
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    loader = re.search(r"^\s*(/\S*ld-linux\S*)", said, re.MULTILINE)
    return Path(loader.group(1)) if loader else None, {Path(found) for found in re.findall(r"=> (/\S+)", said)}


def copy_patched(source: Path, target: Path) -> None:
    content = source.read_bytes()
    for theirs, ours in OWN_FILES.items():
        content = content.replace(theirs, ours)
    target.write_bytes(content)
    target.chmod(0o755)


def copy_standard_library() -> None:
    source = Path(sysconfig.get_path("stdlib"))
    for path in sorted(source.rglob("*")):
        name = str(path.relative_to(source))
        if path.is_file() and path.suffix in {".py", ".so"} and not UNWANTED.search(name):
            target = STDLIB / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for path in sorted((HERE / "site").rglob("*.py")):
        target = STDLIB / path.relative_to(HERE / "site")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def copy_interpreter() -> None:
    program = TARGET / "bin" / "python3"
    program.parent.mkdir(parents=True)
    shutil.copy(Path(sys.executable).resolve(), program)
    loader, needed = libraries(program)
    if loader is None:
        raise SystemExit(f"{program} is not dynamically linked by a GNU loader")
    for extension in STDLIB.glob("lib-dynload/*.so"):
        needed |= libraries(extension)[1]
    # The C library opens this one by name when a thread ends.
    needed |= {path for path in libraries(Path(shutil.which("gcc") or "/usr/bin/gcc"))[1] if "libgcc_s" in path.name}
    needed |= set(Path("/").glob("lib/*-linux-gnu*/libgcc_s.so.1"))
    for path in [loader, *needed]:
        copy_patched(path.resolve(), LIB / path.name)
    os.symlink(loader.name, LIB / "loader")


def compile_launcher() -> None:
    """The program that starts commands: static, because it runs in images with no C library, or another one."""
    flags = "-static-pie -fPIE -O2 -fstack-protector-strong -D_FORTIFY_SOURCE=2 -Wall -Wextra -Werror -Wl,-z,relro,-z,now -s"
    subprocess.run(["gcc", *flags.split(), "-o", TARGET / "bin" / "launcher", HERE / "launcher.c"], check=True)


def compile_tree_states() -> None:
    """The function that reads a tree for the guest; it uses the C library beside it."""
    flags = "-shared -fPIC -O2 -fstack-protector-strong -D_FORTIFY_SOURCE=2 -Wall -Wextra -Werror -Wl,-z,relro,-z,now -s"
    subprocess.run(["gcc", *flags.split(), "-o", TARGET / "bin" / "tree_states.so", HERE / "tree_states.c"], check=True)


def compile_all() -> None:
    """Byte code in the place of its source: half the size, a look at the disk less for each import, never stale."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    where = {"stripdir": str(TARGET), "prependdir": "/.gamebox"}
    if not compileall.compile_dir(STDLIB, quiet=1, legacy=True, optimize=2, invalidation_mode=mode, **where):
        raise SystemExit("some modules do not compile")
    for path in STDLIB.rglob("*.py"):
        path.unlink()


def write_manifest() -> None:
    digests = {
        str(path.relative_to(TARGET)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(TARGET.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
    (TARGET / "manifest.json").write_text(json.dumps(digests, indent=0))


LIB.mkdir(parents=True)
copy_standard_library()
copy_interpreter()
compile_launcher()
compile_tree_states()
compile_all()
(TARGET / "nss.conf").write_text(NAME_SERVICES)
(TARGET / "etc").mkdir()
shutil.copyfile("/etc/ssl/certs/ca-certificates.crt", TARGET / "etc" / "ca-certificates.crt")
shutil.copyfile(HERE / "finish.py", TARGET / "finish.py")
os.symlink(STDLIB.relative_to(TARGET), TARGET / "modules")
write_manifest()
