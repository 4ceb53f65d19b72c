"""Validation: everything that a start would find out, found out beforehand and changing nothing.

Each module holds the checks of one thing; every check is a function that gives `Check`s and raises nothing that a user
can mend. Importing `app.tools.validate.examination` loads TensorFlow.
"""

from app.tools.validate.check import CheckOutcome, CheckResult, exit_code_of

__all__ = ["CheckOutcome", "CheckResult", "exit_code_of"]
