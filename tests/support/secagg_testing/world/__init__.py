"""A whole service in one thread, whose time and luck come from a seed.

Real servers and real clients, with their stores, their cryptography and their attempts,
run on one event loop.  What is not real is everything that a program cannot choose: the
clock, threads, disks, the network and the moment at which a process dies.  All of that
is drawn from one seed, so that a run that shows a fault shows it again.

* `dice`: the luck; * `loop`: virtual time, threads without threads, processes that
  stop and die; * `machines`: processes and their disks; * `network`: the way between
  them; * `witness`: what must hold, of servers (`servers_seen`), of clients
  (`clients_seen`) and between them; * `notes`: the trace; * `plan`: what a seed stands
  for; * `directed`: a restart at a chosen place; * `run`: one run.

`python -m secagg_testing.world` runs many seeds, or replays one.
"""
