"""Membership: identities, credentials and revocations."""
