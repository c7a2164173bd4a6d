"""What survives a crash: journals of sessions, and large bytes beside them."""
