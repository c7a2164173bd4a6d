"""One session at the server: state, timer, uploads, report."""
