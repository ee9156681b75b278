"""GRPO for flow-matching models: stochastic dynamics and the algorithms that train on them.

`steps`, `advantages`, `windows` and `ratios` are the mathematics: pure functions of tensors and
numbers. `dynamics` and `algorithms` are the plugins.
"""
