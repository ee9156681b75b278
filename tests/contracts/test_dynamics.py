"""Every installed dynamics pass their contract."""

from headwater.testing import DynamicsContract


class TestOde(DynamicsContract):
    name = "ode"


class TestFlowSde(DynamicsContract):
    name = "flow-sde"


class TestDanceSde(DynamicsContract):
    name = "dance-sde"


class TestCps(DynamicsContract):
    name = "cps"


class TestDdimEta(DynamicsContract):
    name = "ddim-eta"
