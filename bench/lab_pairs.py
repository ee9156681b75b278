"""Which estimators bench/lab.py sets beside which, on the same rollouts and draws."""

PAIRS = [
    ("leapalign{coupling=0.0}", "leapalign"),
    ("leapalign{coupling=0.1}", "leapalign"),
    ("leapalign{coupling=0.5}", "leapalign"),
    ("leapalign{coupling=1.0}", "leapalign"),
    ("flowbp-lagrange{coupling=0.0}", "flowbp-lagrange"),
    ("flowbp-lagrange{coupling=0.3}", "flowbp-lagrange"),
    ("flowbp-lagrange{coupling=1.0}", "flowbp-lagrange"),
    ("leapalign{leaps=1}", "leapalign"),
    ("leapalign{leaps=3}", "leapalign"),
    ("leapalign{range=[0.0,0.5]}", "leapalign"),
    ("leapalign{range=[0.5,1.0]}", "leapalign"),
    ("leapalign{similarity_weights=false}", "leapalign"),
    ("refl{endpoint='sample'}", "refl"),
    ("drtune{endpoint='sample'}", "drtune"),
    ("draft-lv{endpoint='sample'}", "draft-lv"),
    ("flowbp-sparse", "leapalign"),
    ("flowbp-bridge", "leapalign"),
    ("flowbp-lagrange", "leapalign"),
    ("draft-k{k=5}", "draft-k"),
    ("flowbp-lagrange{order=1}", "flowbp-lagrange{order=3}"),
    ("flowbp-lagrange{order=2}", "flowbp-lagrange{order=3}"),
    ("flowbp-hat", "flowbp-bridge"),
    ("flowbp-hat", "flowbp-bridge{k=4,late_bias=0.0,coupling=0.3}"),
    ("flowbp-hat", "flowbp-lagrange"),
    ("flowbp-hat", "leapalign"),
    ("flowbp-hat{coupling=0.0}", "flowbp-sparse{k=4,late_bias=0.0}"),
    ("flowbp-hat{coupling=1.0}", "flowbp-hat"),
    ("flowbp-hat{k=8}", "flowbp-hat"),
    ("flowbp-chain", "flowbp-hat{coupling=1.0}"),
    ("flowbp-chain", "flowbp-bridge{k=4,late_bias=0.0,coupling=1.0}"),
    ("flowbp-chain", "flowbp-lagrange"),
    ("flowbp-chain{k=2}", "leapalign{coupling=1.0}"),
    ("flowbp-chain{k=3}", "leapalign{leaps=3,coupling=1.0}"),
    ("flowbp-chain{k=8}", "flowbp-hat{k=8,coupling=1.0}"),
    ("flowbp-chain{coupling=0.3}", "flowbp-hat"),
    ("flowbp-chain{coupling=0.0}", "flowbp-hat{coupling=0.0}"),
    ("flowbp-chain{coupling=0.0}", "flowbp-sparse{k=4,late_bias=0.0}"),
    ("flowbp-chain{k=8}", "flowbp-chain"),
]

_LINEAR = ("jagg{routed=1.0}", "jagg{window=8,routed=1.0}")
PLACED = [
    (name, linear)
    for linear, names in zip(
        _LINEAR,
        (
            (
                "jagg{routed=1.0,basis='nearest',nodes=[0,2]}",
                "jagg{routed=1.0,basis='calibrated'}",
                "jagg-kriging",
                "jagg-kriging{basis='kriging'}",
            ),
            (
                "jagg{window=8,routed=1.0,basis='linear',nodes=[1,6]}",
                "jagg{window=8,routed=1.0,basis='nearest',nodes=[1,6]}",
                "jagg{window=8,routed=1.0,basis='calibrated'}",
                "jagg{window=8,routed=1.0,basis='calibrated',nodes=[1,6]}",
                "jagg-kriging{window=8}",
                "jagg-kriging{window=8,basis='kriging'}",
            ),
        ),
        strict=True,
    )
    for name in names
]
