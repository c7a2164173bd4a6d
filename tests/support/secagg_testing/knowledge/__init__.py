"""The knowledge ledger: what an adversary can compute from what it saw.

A test runs sessions, honest or not, and records in `Facts` what the server sent and
received, and whose state the adversary holds.  `check` then derives everything that
follows, and raises `ForbiddenKnowledgeError` where that is more than the protocol
promises: a second sum, a smaller one, one that no client was charged for.

* `facts`: what was seen; nothing is concluded there.
* `closure`: from facts to secrets, until nothing new follows.
* `sums`: from masked vectors to the sums of inputs that show (`null_space`: the
  arithmetic); `recover` computes such a sum in numbers.
* `claims`: what may be known at most, and the explanation where it is more.

It repeats the protocol's arithmetic from PROTOCOL §4 to §7 on the primitives, and
trusts neither the client nor the server that it observes.
"""
