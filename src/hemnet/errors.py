"""The one error class whose message is meant for the person at the keyboard."""


class UserError(Exception):
    """Something the user gave cannot be used; the message says what, and what to do.

    The command line prints the message alone, without a traceback, and exits with 2.
    """
