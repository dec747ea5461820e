#!/usr/bin/python3
"""ss for those who ask whether a port is open, as ready commands of templates do: ss -Htuln "sport = :8000".

The sandbox has no iproute2. Of the options, -t, -u, -l, -a and -H have their meaning, and of filters "sport = :PORT".
"""

import ipaddress
import re
import sys

STATES = {"01": "ESTAB", "02": "SYN-SENT", "03": "SYN-RECV", "06": "TIME-WAIT", "07": "UNCONN", "08": "CLOSE-WAIT", "0A": "LISTEN"}
LISTENING = ("LISTEN", "UNCONN")


def address(text: str) -> tuple[str, int]:
    """Return an address as the kernel writes it: hexadecimal words in the order of the host."""
    words, _, port = text.partition(":")
    data = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    found = ipaddress.ip_address(data)
    shown = "*" if found.is_unspecified and found.version == 6 else f"[{found}]" if found.version == 6 else str(found)
    return shown, int(port, 16)


def main() -> None:
    """Print the sockets."""
    given = [each for each in sys.argv[1:] if each.startswith("-")]
    flags = {flag for each in given if not each.startswith("--") for flag in each[1:]}
    flags |= {each[2] for each in given if each in ("--tcp", "--udp", "--listening", "--all")}
    ports = {int(each) for each in re.findall(r"sport\s*(?:=+|eq)?\s*:(\d+)", " ".join(sys.argv[1:]))}
    kinds = [kind for kind in ("udp", "tcp") if kind[0] in flags] or ["udp", "tcp"]
    if "H" not in flags and "--no-header" not in given:
        print("Netid State Recv-Q Send-Q Local Address:Port Peer Address:Port")
    for kind in kinds:
        for file in (kind, f"{kind}6"):
            try:
                with open(f"/proc/net/{file}", encoding="ascii") as table:
                    lines = table.readlines()[1:]
            except OSError:
                continue
            for line in lines:
                fields = line.split()
                (local, port), (peer, peer_port) = address(fields[1]), address(fields[2])
                state = STATES.get(fields[3], fields[3])
                is_shown = "a" in flags or (state in LISTENING) == ("l" in flags)
                if is_shown and (not ports or port in ports):
                    sent, received = (int(each, 16) for each in fields[4].split(":"))
                    print(kind, state, received, sent, f"{local}:{port}", f"{peer}:{peer_port or '*'}")


main()
