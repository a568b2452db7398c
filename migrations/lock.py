"""The advisory lock that is held while one process migrates."""

LOCK_KEY = 0x45564552_5455524E
"""'EVERTURN'."""
