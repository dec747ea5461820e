"""Credit: what may be sent, what may have arrived, and what is given back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandbox.guest.protocol.wire import ReceiveWindow, SendWindow, parse_credit


def test_credit_beyond_the_limit_is_ignored() -> None:
    window = SendWindow(100)
    window.use(60)
    window.add_credit(50)
    assert window.left == 90
    window.add_credit(50)
    assert window.left == 100
    grown = SendWindow(100, 150)
    grown.add_credit(70)
    assert grown.left == 150


def test_a_sender_beyond_its_window_is_noticed() -> None:
    window, overruns = ReceiveWindow(100), []
    for received, consumed in ((100, 0), (1, 0), (0, 1)):
        window.receive(received)
        window.consume(consumed)
        overruns.append(window.overrun)
    assert overruns == [False, True, False]


def test_credit_is_due_for_a_quarter_of_the_window_and_may_enlarge_it() -> None:
    window = ReceiveWindow(100)
    window.receive(60)
    window.consume(24)
    assert not window.credit_due
    window.consume(1)
    assert (window.credit_due, window.owed, window.held) == (True, 25, 35)
    assert parse_credit(window.credit(10)) == 35
    assert (window.credit_due, window.owed, window.size) == (False, 0, 110)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 64)), max_size=50))
def test_both_ends_agree_however_the_bytes_are_cut(steps: list[tuple[int, int]]) -> None:
    """A sender that keeps to its window never exceeds the receiver's, and is never stuck once everything is consumed."""
    sender, receiver = SendWindow(100), ReceiveWindow(100)
    for send, consume in steps:
        count = min(send, sender.left)
        sender.use(count)
        receiver.receive(count)
        assert not receiver.overrun
        receiver.consume(min(consume, receiver.held))
        if receiver.credit_due:
            sender.add_credit(parse_credit(receiver.credit()))
        assert sender.left + receiver.held + receiver.owed == 100
    receiver.consume(receiver.held)
    if receiver.credit_due:
        sender.add_credit(parse_credit(receiver.credit()))
    assert sender.left > 0
