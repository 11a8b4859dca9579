"""What can go wrong by the user's hand."""


class UserError(Exception):
    """The user's input is wrong: one line a mistake, exit code 2, nothing written."""
