"""Validation: everything that a start would find out, found out beforehand without changing anything.

Each module holds the checks of one thing. A check is a function that gives `CheckResult`s; it raises no error that a
user can repair. Importing `app.tools.validate.examination` loads TensorFlow.
"""

from millrace.app.tools.validate.check import CheckOutcome, CheckResult, exit_code_of

__all__ = ["CheckOutcome", "CheckResult", "exit_code_of"]
