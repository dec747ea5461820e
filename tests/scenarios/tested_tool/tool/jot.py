"""jot: keeps notes in a file. ``jot add TEXT``, ``jot list [--json]``, ``jot serve --port PORT``; the file is $JOT_FILE."""

import argparse
import fcntl
import http.server
import json
import os
import sys

FILE = os.environ.get("JOT_FILE", "notes.jsonl")


def add(text: str) -> int:
    """The number of the new note."""
    with open(FILE, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = sum(1 for _ in file) + 1
        file.write(json.dumps({"number": number, "text": text}) + "\n")
    return number


def notes() -> list[dict[str, object]]:
    try:
        with open(FILE, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []
    except json.JSONDecodeError as error:
        sys.exit(f"jot: {FILE} is damaged: {error}")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(notes()).encode()
        self.send_response(200 if self.path == "/notes" else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body if self.path == "/notes" else b"{}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="jot")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("add").add_argument("text")
    commands.add_parser("list").add_argument("--json", action="store_true")
    commands.add_parser("serve").add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    if args.command == "add":
        print(f"note {add(args.text)}")
    elif args.command == "list":
        print(json.dumps(notes()) if args.json else "\n".join(f"{n['number']}. {n['text']}" for n in notes()))
    else:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
        print(f"jot listens on 127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
