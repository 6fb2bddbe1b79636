"""The exceptions that Regard raises on purpose.

    RegardError            anything below; the command line exits with 1
      UserError            the input, a file or an option is wrong; exits with 2
        InputError         a text or document is malformed; the message never quotes it, so that a server may send it back
          InputTooLarge    it exceeds a limit
      Interrupted          the person pressed Ctrl-C and the work was saved; exits with 130

A UserError is one line that names the file, line or field, the rule that it breaks, what came instead and, where there is
one, the remedy. It is shown without a traceback.
"""

from __future__ import annotations


class RegardError(Exception):
    """Base of every exception that Regard raises on purpose."""

    exit_code = 1


class UserError(RegardError):
    """The person can repair this: a file, an option or a recipe is not as it must be."""

    exit_code = 2


class InputError(UserError):
    """A text, a document or a request is malformed. The message names the field and the rule and never quotes the input, so that
    a server may send it back."""


class InputTooLarge(InputError):
    """The input exceeds a limit."""


class Interrupted(RegardError):
    """The person stopped the work; everything so far is saved and the message says how to go on."""

    exit_code = 130
