"""Cryptographic and modular building blocks of the protocol.

These modules know nothing of rounds, clients or policies.  Most are safe only in the
combination that the protocol layer makes: single-use keys, one stream per key, shares
that are verified after use.  Import the modules by name.  Nothing is re-exported here,
and their signatures may change between minor releases.
"""
