"""A DNS server whose answers change with every question: for rebinding."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from dnslib import QTYPE, RR, A, DNSRecord
from dnslib.server import DNSHandler, DNSLogger, DNSServer


@contextlib.contextmanager
def name_server(answers: Mapping[str, Sequence[str]], asked: list[str], address: str) -> Iterator[None]:
    """On port 53 of ``address``: the first question for a name gets its first answer, and so on; the last one stays.

    ``asked`` gets "TYPE NAME" of every question. Names that are not in ``answers`` do not exist.
    """
    served: dict[str, int] = {}

    class Resolver:
        def resolve(self, request: DNSRecord, handler: DNSHandler) -> DNSRecord:
            name = str(request.q.qname).rstrip(".").lower()
            kind = QTYPE[request.q.qtype]
            asked.append(f"{kind} {name}")
            reply = request.reply()
            if name not in answers:
                reply.header.rcode = 3
            elif kind == "A":
                number = served.get(name, 0)
                served[name] = number + 1
                given = answers[name][min(number, len(answers[name]) - 1)]
                reply.add_answer(RR(request.q.qname, QTYPE.A, rdata=A(given), ttl=0))
            return reply

    server = DNSServer(Resolver(), port=53, address=address, logger=DNSLogger("-request,-reply,-truncated,-error"))
    server.start_thread()
    try:
        yield
    finally:
        server.stop()
        server.server.server_close()
