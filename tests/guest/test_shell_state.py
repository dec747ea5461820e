"""What of a session carries over in the shell itself."""

from __future__ import annotations

from sandbox.guest.commands.shell_state import functions_of


def test_functions_that_take_the_shells_own_words_stay_behind() -> None:
    kept = "greet () \n{ \n    echo hello\n}\n"
    assert functions_of("eval () \n{ \n    :\n}\n" + kept + "exit () \n{ \n    :\n}\n") == kept
    assert functions_of("evaluate () \n{ \n    :\n}\n" + kept) == "evaluate () \n{ \n    :\n}\n" + kept


def test_no_function_is_kept_where_one_of_those_cannot_be_cut_out() -> None:
    assert functions_of("greet () \n{ \n    :\n}\nexit () \n{ \n    cat <<X\nhere\nX\n\n}\n") == ""
