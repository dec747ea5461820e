"""Programs that the doctor runs in a sandbox: each tries what a sandbox forbids and prints what it got as JSON."""

from __future__ import annotations

HOG = "held = []\nwhile True: held.append(b'x' * (4 << 20))\n"

SWAP = """
import json
def number(*names):
    for name in names:
        try: text = open("/sys/fs/cgroup/" + name).read().strip()
        except OSError: continue
        return int(text) if text.isdigit() else -1
memory = number("memory/memory.limit_in_bytes", "memory.max")
both, swap = number("memory/memory.memsw.limit_in_bytes"), number("memory.swap.max")
if both is not None: swap = both - memory
if swap is None: swap = 0 if len(open("/proc/swaps").readlines()) < 2 else -1
print(json.dumps({"memory": memory, "swap": swap}))
"""

SPIN = """
import json, os, time
start = time.monotonic()
for _ in range(2):
    if os.fork() == 0:
        while time.monotonic() < start + 1: pass
        os._exit(0)
for _ in range(2): os.wait()
times = os.times()
print(json.dumps({"share": (times.children_user + times.children_system) / (time.monotonic() - start)}))
"""

FORK = """
import json, os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
children = []
try:
    while len(children) < 5000:
        child = os.fork()
        if child == 0:
            time.sleep(20)
            os._exit(0)
        children.append(child)
except OSError: pass
for child in children: os.kill(child, 9)
print(json.dumps({"count": len(children)}))
"""

FILL = """
import errno, json, os
total, error, number = 0, "", 0
block = b"x" * (1 << 20)
while not error:
    with open(f"/workspace/fill{number}", "wb", buffering=0) as file:
        for _ in range(16):
            try: total += file.write(block)
            except OSError as failed:
                error = errno.errorcode[failed.errno]
                break
    number += 1
    if total > 1 << 30: error = "nothing"
for n in range(number): os.unlink(f"/workspace/fill{n}")
print(json.dumps({"bytes": total, "error": error}))
"""

FILES = """
import json, os, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
opened = []
try:
    while len(opened) < 100000: opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
for fd in opened[:8]: os.close(fd)
size, file = 0, os.open("/workspace/large", os.O_RDWR | os.O_CREAT)
try:
    while size < 1 << 40:
        os.ftruncate(file, size + (1 << 20))
        size += 1 << 20
except OSError: pass
os.unlink("/workspace/large")
print(json.dumps({"open": len(opened), "size": size}))
"""

_ATTEMPT = """
import json, os, socket
got, tried = [], 0
def attempt(name, call):
    global tried
    tried += 1
    try:
        if call() is not False: got.append(name)
    except (OSError, ValueError): pass
"""
_PRINT = '\nprint(json.dumps({"got": got, "tried": tried}))\n'

NETWORK = f"""{_ATTEMPT}
for name in os.listdir("/sys/class/net"): attempt("interface " + name, lambda: name != "lo")
def reach(address):
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as s:
        s.settimeout(1)
        s.connect(address)
for address in (("192.0.2.1", 80), ("169.254.169.254", 80), ("172.17.0.1", 2375), ("10.0.0.1", 80), ("2001:db8::1", 80)):
    attempt(f"{{address[0]}}", lambda: reach(address))
{_PRINT}"""

EGRESS = f"""{_ATTEMPT}
def send(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s: s.sendto(b"x", address)
for address in (("192.0.2.1", 53), ("169.254.169.254", 53), ("172.17.0.1", 53), ("255.255.255.255", 9)):
    attempt(f"datagram to {{address[0]}}", lambda: send(address))
attempt("name", lambda: socket.getaddrinfo("example.com", 80))
attempt("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
{_PRINT}"""

# Asks the sandbox's proxy for the port PORT of the host's loopback, and prints its answer and what comes through.
BY_RULE = """
import json, socket
with socket.create_connection(("127.0.0.1", 24128), timeout=10) as s:
    s.sendall(b"CONNECT 127.0.0.1:PORT HTTP/1.1\\r\\n\\r\\n")
    said = b""
    while b"\\r\\n\\r\\n" not in said and (more := s.recv(4096)): said += more
    status = said.split(b" ")[1].decode()
    through = said.partition(b"\\r\\n\\r\\n")[2]  # it may come together with the answer
    while status == "200" and (more := s.recv(16)): through += more
print(json.dumps({"status": status, "through": through.decode()}))
"""

ROOT = f"""{_ATTEMPT}
for folder in ("/", "/etc", "/usr/bin", "/var/lib", "/run", "/run/gamebox", "/dev", "/.gamebox", "/sys/fs/cgroup", "/root"):
    attempt(folder, lambda: open(folder + "/gamebox-probe", "w"))
{_PRINT}"""

PRIVILEGES = f"""{_ATTEMPT}
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
attempt("NoNewPrivs is off", lambda: status["NoNewPrivs"].strip() != "1")
for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"): attempt(name, lambda: int(status[name], 16) != 0)
attempt("setuid 0", lambda: os.setuid(0))
attempt("groups", lambda: os.getgroups() != [])
attempt("chown", lambda: os.chown("/tmp", 0, 0))
{_PRINT}"""

_CALLS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == "x86_64"
def call(on_x86, on_arm, *arguments): return libc.syscall(ctypes.c_long(on_x86 if x86 else on_arm), *arguments) >= 0
space = ctypes.create_string_buffer(4096)
"""

SYSTEM_CALLS = f"""{_ATTEMPT}{_CALLS}
attempt("io_uring", lambda: call(425, 425, 8, space))
attempt("keyctl", lambda: call(250, 219, 0, -1, 0, 0, 0))
attempt("bpf", lambda: call(321, 280, 0, space, 64))
attempt("perf_event_open", lambda: call(298, 241, space, 0, -1, -1, 0))
attempt("userfaultfd", lambda: call(323, 282, 0))
attempt("unshare of a user namespace", lambda: call(272, 97, 0x10000000))
attempt("unshare of a network", lambda: call(272, 97, 0x40000000))
attempt("mount", lambda: call(165, 40, b"none", b"/tmp", b"tmpfs", 0, 0))
attempt("memfd_secret", lambda: call(447, 447, 0))
for name, family, kind in (("VM sockets", 40, 1), ("packet sockets", 17, 3), ("kernel crypto sockets", 38, 5)):
    attempt(name, lambda: socket.socket(family, kind))
seccomp = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("Seccomp:"))
print(json.dumps({{"got": got, "tried": tried, "seccomp": seccomp}}))
"""

PROC = f"""{_ATTEMPT}{_CALLS}
for name in ("/proc/self/oom_score_adj", "/proc/self/coredump_filter", "/proc/sys/kernel/core_pattern"):
    attempt(name, lambda: open(name, "w"))
landlock = libc.syscall(ctypes.c_long(444), None, ctypes.c_size_t(0), ctypes.c_uint(1))
print(json.dumps({{"got": got, "tried": tried, "landlock": max(0, landlock)}}))
"""

GUEST = f"""{_ATTEMPT}{_CALLS}
import resource
for number in (0, 9, 15, 19): attempt(f"signal {{number}}", lambda: os.kill(1, number))
for name in ("mem", "environ", "maps", "syscall"): attempt(name, lambda: open(f"/proc/1/{{name}}", "rb").read(1))
for name in ("cwd", "exe", "root", "fd/3", "fd/4"): attempt(name, lambda: os.readlink(f"/proc/1/{{name}}"))
attempt("fd", lambda: os.listdir("/proc/1/fd"))
attempt("ptrace", lambda: call(101, 117, 16, 1, 0, 0))
attempt("prlimit", lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (1, 1)))
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
{_PRINT}"""

EVADE = """
import os, signal, threading, time
os.environ["GAMEBOX_EVADER"] = "1"
for kind in range(5):
    if os.fork() == 0:
        if kind > 0: os.setsid()
        if kind > 1 and os.fork(): os._exit(0)
        if kind > 2:
            for number in range(1, 65):
                try: signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError): pass
        if kind == 4: os.kill(os.getpid(), signal.SIGSTOP)
        os.execv("/bin/sleep", ["sleep", "4242"])
time.sleep(60)
"""

LEFT = """
import json, os
left = 0
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (os.getpid(), os.getppid()):
        try:
            state = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[0]
            left += os.stat(f"/proc/{name}").st_uid == os.getuid() and state != "Z"
        except OSError: pass
print(json.dumps({"left": left}))
"""

ORCHESTRATOR = """
import sys, time
from sandbox import DockerEnvironment, Limits
limits = Limits(memory_bytes=64 << 20, pids=64)
env = DockerEnvironment(limits=limits, runtime=sys.argv[1] or None).start()
print(env.container_id, flush=True)
time.sleep(60)
"""

# Prints the longest time for which it did not run, between its first line and the file that ends it.
STAND_STILL = """
import os, time
print("runs", flush=True)
longest, last = 0.0, time.monotonic()
until = last + 60
while not os.path.exists("/tmp/resumed") and last < until:
    time.sleep(0.01)
    now = time.monotonic()
    longest, last = max(longest, now - last), now
print(longest)
"""

KEEPER = """
import sys, time
from sandbox import DockerEnvironment, Limits
limits = Limits(memory_bytes=64 << 20, pids=64)
env = DockerEnvironment(limits=limits, runtime=sys.argv[1] or None, keep=True, keep_seconds=30.0).start()
env.run("export LEFT=behind; cd /tmp").unwrap()
print(env.container_id, env.run("sleep 4242", background=True).unwrap().id, flush=True)
time.sleep(60)
"""
