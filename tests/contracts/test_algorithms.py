"""Every installed algorithm passes its contract, and some with other settings."""

from headwater.testing import AlgorithmContract


class TestDirect(AlgorithmContract):
    name = "direct"


class TestDirectWithoutMargin(AlgorithmContract):
    name = "direct"
    settings = {"margin": "none"}


class TestFlowGrpo(AlgorithmContract):
    name = "flow-grpo"


class TestFlowGrpoWithKL(AlgorithmContract):
    name = "flow-grpo"
    settings = {"beta": 0.1, "reference": "copy"}


class TestFlowGrpoFast(AlgorithmContract):
    name = "flow-grpo-fast"


class TestDanceGrpo(AlgorithmContract):
    name = "dance-grpo"


class TestDanceGrpoOfEach(AlgorithmContract):
    name = "dance-grpo"
    settings = {"combine": "each", "best_of": 2}


class TestMixGrpo(AlgorithmContract):
    name = "mix-grpo"


class TestGrpoGuard(AlgorithmContract):
    name = "grpo-guard"


class TestSoftDirect(AlgorithmContract):
    name = "soft-direct"
