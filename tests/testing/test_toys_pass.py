"""The kit's own plugins pass the contracts: what is sound is not refused."""

import pytest

from headwater.testing import (
    AlgorithmContract,
    BackboneContract,
    DynamicsContract,
    EstimatorContract,
    ObserverContract,
    RewardContract,
)

pytestmark = pytest.mark.usefixtures("headwater_toys")


class TestToyBackbone(BackboneContract):
    name = "toy"
    size = (4, 4)


class TestToyNoise(DynamicsContract):
    name = "toy-noise"


class TestBrightness(RewardContract):
    name = "toy-brightness"


class TestCount(RewardContract):
    name = "toy-count"


class TestToyDirect(AlgorithmContract):
    name = "toy-direct"


class TestToyPolicy(AlgorithmContract):
    name = "toy-policy"


class TestEveryStep(EstimatorContract):
    name = "toy-bptt"


class TestNoisyStep(EstimatorContract):
    name = "toy-noisy"


class TestEachStep(EstimatorContract):
    name = "toy-each"


class TestRecorder(ObserverContract):
    name = "toy-recorder"
