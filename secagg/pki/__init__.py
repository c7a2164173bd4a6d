"""Who may take part: identities, credentials, and what was taken back."""
