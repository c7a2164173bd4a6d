"""How many inputs, and from which seed: `make fuzz` asks for ten million."""


def pytest_addoption(parser):
    parser.addoption("--fuzz-inputs", type=int, default=120_000)
    parser.addoption("--fuzz-seed", type=int, default=1)
