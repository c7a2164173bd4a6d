"""What is left of a session for anybody to judge: without network, state or secrets."""
