"""The one error of the stack: a single line naming the part, the cause and the way out."""


class StackError(Exception):
    """Its text is printed as it is; there is nothing to add to it."""
