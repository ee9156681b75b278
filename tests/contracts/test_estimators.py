"""Every installed estimator passes its contract, and some with other settings."""

from headwater.testing import EstimatorContract


class TestBptt(EstimatorContract):
    name = "bptt"


class TestExact(EstimatorContract):
    name = "exact"


class TestDraftK(EstimatorContract):
    name = "draft-k"
    settings = {"k": 3}


class TestDraftLV(EstimatorContract):
    name = "draft-lv"


class TestRefl(EstimatorContract):
    name = "refl"


class TestReflOnTheSample(EstimatorContract):
    name = "refl"
    settings = {"endpoint": "sample"}


class TestDRTune(EstimatorContract):
    name = "drtune"


class TestLeapAlign(EstimatorContract):
    name = "leapalign"


class TestLeapAlignThreeLeaps(EstimatorContract):
    name = "leapalign"
    settings = {"leaps": 3}


class TestSparse(EstimatorContract):
    name = "flowbp-sparse"


class TestBridge(EstimatorContract):
    name = "flowbp-bridge"


class TestLagrange(EstimatorContract):
    name = "flowbp-lagrange"


class TestFreeSurrogate(EstimatorContract):
    name = "surrogate"


class TestJagg(EstimatorContract):
    name = "jagg"


class TestJaggCalibrated(EstimatorContract):
    name = "jagg"
    settings = {"basis": "calibrated", "routed": 1.0, "calibrate_every": 1}


class TestJaggCached(EstimatorContract):
    name = "jagg"
    settings = {"middle": "cached", "nodes": [0, 2]}


class TestFlowBPHat(EstimatorContract):
    name = "flowbp-hat"


class TestFlowBPChain(EstimatorContract):
    name = "flowbp-chain"


class TestJaggKriging(EstimatorContract):
    name = "jagg-kriging"
