"""What holds for all tests."""

from __future__ import annotations

import gc
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import core, settings

from tests.given.examples import examples

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

settings.register_profile(
    "rules",
    max_examples=examples(100),
    deadline=None,  # an example is judged by what it does: how long it takes says what else the machine does
    derandomize=False,  # Hypothesis would find nothing new on a machine that sets CI
    print_blob=True,
)
settings.load_profile("rules")
_SEED = pytest.StashKey[str]()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give Hypothesis the seed of pytest-randomly, a new one in each run: alone it would take one that nobody sees."""
    seed = config.getoption("randomly_seed", default=None)
    if seed is None:  # without that plugin
        seed = random.Random().getrandbits(32)
    given = config.getoption("hypothesis_seed")
    if given is None:
        core.global_force_seed = seed
    config.stash[_SEED] = f"make test SEED={seed}" + ("" if given is None else f", and --hypothesis-seed={given}")


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what imports and the collection have made: with Airflow it looked at a million objects 200 times."""
    gc.collect()
    gc.freeze()


def pytest_report_header(config: pytest.Config) -> str:
    """Say how the run is repeated."""
    return f"seed of the order, of random and of Hypothesis: {config.stash[_SEED]}"


def pytest_terminal_summary(terminalreporter: TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Say it again where somebody looks first, also in a quiet run, which has no header."""
    if exitstatus:
        terminalreporter.write_line(f"Repeat it with its seed: {config.stash[_SEED]}")
