"""Where the heavy part of a sum is computed: threads, processes, or a cluster."""
