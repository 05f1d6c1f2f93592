"""In which order trials are tried on a mutant that is left once it is killed: those first that probably kill it.

The order saves time and changes no verdict: a mutant that nothing kills is judged on every trial.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence

from touchstone.conformance.faults import Planted
from touchstone.conformance.judging.trials import CaseTrial, ManyCalls, PropertyTrial, Trial
from touchstone.conformance.selftest.results import families
from touchstone.conformance.spec.contract import GRID_LIMIT, Case, Contract

USUAL, UNLIKELY = 0.4, 0.03  # chances that a trial kills a mutant, before any was tried
OF_STRIDES = ("strides", "alignment", "offset")  # kinds that show in operands that are not contiguous
OF_CALLS = ("cache", "race")  # kinds of which many calls show what often nothing else does
SOON = 5  # trials, after which those calls are made
LARGE = 100  # a number in a mutant's words that is one of elements, which a size has to exceed
FITTING, NOT_FITTING = 3.0, 0.05  # how much more probably a size that does kills it, and one that does not
WEIGHT = 2.0  # of what is expected, in trials
UNIT = 2e5  # the work that takes as long as all else about a trial
MOST = 10.0  # that this counts: rows beyond a grid are much work in a contract's words alone


class Order:
    """The order of one op's trials, by a mutant's declaration and by what the trials did before: those come first that
    killed others of its kind, and others at all, for the time that they take."""

    def __init__(self, contract: Contract, trials: Sequence[Trial]) -> None:
        self._words = {trial.id: set(_words(" ".join(families(trial)))) for trial in trials}
        self._largest = {trial.id: _largest(contract, trial.case) for trial in trials}
        self._costs = {trial.id: _cost(contract, trial) for trial in trials}
        having = Counter(word for words in self._words.values() for word in words)
        self._telling = {word: math.log(len(trials) / count) for word, count in having.items()}
        self._tried: Counter[tuple[str, str]] = Counter()  # by the kind of the mutants, "" for all, and the trial's id
        self._killed: Counter[tuple[str, str]] = Counter()

    def of(self, planted: Planted, trials: Sequence[Trial]) -> list[Trial]:
        """These trials, in the order in which they are to be tried on a mutant."""
        text = f"{planted.name} {planted.about}"
        words = set(_words(text))
        elements = max((n for n in map(int, re.findall(r"\d+", text)) if n >= LARGE), default=0)

        def worth(trial: Trial) -> float:
            chance = _expected(planted, trial)
            if elements:
                chance *= FITTING if self._largest[trial.id] > elements else NOT_FITTING
            chance *= 1 + sum(self._telling[word] for word in words & self._words[trial.id])
            for kind in ("", planted.kind):
                known = kind, trial.id
                chance = (self._killed[known] + WEIGHT * chance) / (self._tried[known] + WEIGHT)
            return chance / self._costs[trial.id]

        found = sorted(trials, key=worth, reverse=True)
        if planted.kind in OF_CALLS and not planted.backend:
            later = [trial for trial in found[SOON:] if isinstance(trial, ManyCalls)]
            found[SOON:] = [*later, *(trial for trial in found[SOON:] if trial not in later)]
        return found

    def learn(self, planted: Planted, tried: Sequence[Trial], killing: Collection[str]) -> None:
        """What came of the trials that were tried on a mutant: the ids of those that have killed it."""
        for kind in ("", planted.kind):
            self._tried.update((kind, trial.id) for trial in tried)
            self._killed.update((kind, each) for each in killing)


def _expected(planted: Planted, trial: Trial) -> float:
    """How probably a trial kills a mutant of that kind; races between threads show under the instruments."""
    case, kind = trial.case, planted.kind
    fits = case.filled is (kind != "empty") and not (kind in OF_STRIDES and case.contiguous)
    if planted.backend and kind == "race":
        fits = isinstance(trial, CaseTrial) and trial.instrumented
    return USUAL if fits and not isinstance(trial, PropertyTrial) else UNLIKELY


def _largest(contract: Contract, case: Case) -> int:
    """The most elements along an axis, or rows where the case is there for these."""
    sizes = (size if isinstance(size, tuple) else (size,) for _, size in case.sizes)
    largest = max((n for each in sizes for n in each), default=0)
    return max(largest, 2 * GRID_LIMIT) if contract.is_beyond_grid(case) else largest


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def _cost(contract: Contract, trial: Trial) -> float:
    """About how long a trial takes, in times of the shortest."""
    work = min(contract.work(trial.case) / UNIT, MOST)
    return trial.count * (0.25 + work) if isinstance(trial, ManyCalls) else 1 + work
