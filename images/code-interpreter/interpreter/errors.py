"""What can go wrong with a context."""


class KernelDiedError(Exception):
    """The process of a kernel has ended, or does not answer; the message is a sentence for the client."""


class RefusedError(Exception):
    """A request that cannot be fulfilled: the status of its answer, and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
