"""The one error type that is shown to users."""


class DoctorError(Exception):
    """Tell the user what is wrong and which flag, line or command mends it.

    Raised anywhere, caught once in `cli`. `exit_code` is 2 for bad usage or input, 3 where the
    question could not be answered.
    """

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code
