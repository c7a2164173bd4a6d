"""The operator's socket, page and views."""
