"""ledger: keeps accounts in the PostgreSQL database that LEDGER_DSN names."""

import os
import sys

import psycopg2


def main(words: list[str]) -> int:
    """Carry out one command: init, add NAME CENTS, move FROM TO CENTS, show."""
    try:
        with (
            psycopg2.connect(os.environ["LEDGER_DSN"], connect_timeout=10) as connection,
            connection.cursor() as cursor,
        ):
            if words[:1] == ["init"]:
                cursor.execute("CREATE TABLE accounts (name text PRIMARY KEY, cents bigint CHECK (cents >= 0))")
            elif words[:1] == ["add"]:
                cursor.execute("INSERT INTO accounts VALUES (%s, %s)", (words[1], int(words[2])))
            elif words[:1] == ["move"]:  # in one transaction: none of it where one half cannot be
                cursor.execute("UPDATE accounts SET cents = cents + %s WHERE name = %s", (int(words[3]), words[2]))
                cursor.execute("UPDATE accounts SET cents = cents - %s WHERE name = %s", (int(words[3]), words[1]))
            elif words[:1] == ["show"]:
                cursor.execute("SELECT name, cents FROM accounts ORDER BY name")
                for name, cents in cursor.fetchall():
                    print(f"{name} {cents}")
            else:
                print(main.__doc__, file=sys.stderr)
                return 2
    except psycopg2.errors.CheckViolation:
        print("ledger: not covered", file=sys.stderr)
        return 1
    except psycopg2.Error as error:
        print(f"ledger: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
