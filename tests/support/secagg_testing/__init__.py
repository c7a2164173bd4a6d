"""Public doubles: clocks moved by hand, scripted peers, faulty stores."""
